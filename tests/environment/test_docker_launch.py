"""What the engine is asked for when a container is made."""

from __future__ import annotations

from agentflow.runner import AsyncioRunner
from agentflow.swe.environment.docker.config import DockerConfig
from agentflow.swe.environment.docker.engine import Engine
from agentflow.swe.environment.docker.images import Image
from agentflow.swe.environment.docker.launch import Launcher
from agentflow.swe.environment.docker.nursery import Nursery
from agentflow.swe.environment.docker.owner import BUILDER_LABEL, OWNER_LABEL, RUN_LABEL, myself


def test_limits_and_labels_reach_the_engine() -> None:
    """Memory with swap, CPU, pids and ulimits; no network, no capability; whose it is."""
    config = DockerConfig(
        memory_bytes=1 << 30, cpus=0.5, pids=64, ulimits={"nofile": 99}, cap_add=("SYS_PTRACE",)
    )
    runner = AsyncioRunner()
    engine = Engine(host="tcp://engine.example:2375", timeout_s=1, runner=runner)
    launcher = Launcher(engine, config, nursery=Nursery(), runner=runner, run_id="r")
    image = Image(id="sha256:1", architecture="amd64")
    settings, host = launcher._settings(image, "helper", {"agentflow.episode": "e/0"})
    labels = settings["labels"]
    assert (settings["image"], labels["agentflow.episode"]) == ("sha256:1", "e/0")
    assert (labels[OWNER_LABEL], labels[BUILDER_LABEL]) == (myself(), launcher.builder)
    assert labels[RUN_LABEL] == "r"
    assert (host["mem_limit"], host["memswap_limit"]) == (1 << 30, 1 << 30)
    assert (host["nano_cpus"], host["pids_limit"]) == (500_000_000, 64)
    assert host["ulimits"] == [
        {"name": "core", "soft": 0, "hard": 0},
        {"name": "nofile", "soft": 99, "hard": 99},
    ]
    assert (host["network_mode"], host["cap_drop"], host["cap_add"]) == (
        "none",
        ["ALL"],
        ["SYS_PTRACE"],
    )
    assert host["security_opt"] == ["no-new-privileges:true"]
