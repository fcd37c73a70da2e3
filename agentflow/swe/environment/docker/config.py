"""DockerConfig: the `environment` section of a run's configuration; unknown keys are errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentflow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


class DockerConfig(BaseModel):
    """How containers are made and how many may exist. Sizes are bytes, times seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "docker"
    """The provider's name, which stands in the same section."""
    docker_host: str | None = None
    """Engine's address: `unix://…`, `tcp://…`; default DOCKER_HOST, else the system's socket."""
    image: str = "agentflow-swe:latest"
    """Image of environments whose spec names none."""
    pull: Literal["never", "missing"] = "missing"
    """Whether an image that the engine lacks is fetched from its registry."""
    user: str | None = None
    """`uid[:gid]` or a name; None is the image's own user."""
    session: Literal["auto", "helper", "shell"] = "auto"
    """`auto`: the helper where we ship one for the image's architecture, else the shell."""

    memory_bytes: int | None = Field(default=4 << 30, gt=0)
    """Memory and swap together; None is no limit."""
    cpus: float | None = Field(default=None, gt=0)
    pids: int | None = Field(default=512, gt=0)
    ulimits: dict[str, int] = Field(default_factory=dict)
    """Kernel limits by name, soft and hard, e.g. `{"nofile": 4096}`; those of the engine else."""
    network: str = "none"
    read_only: bool = False
    """A read-only root; name the places to write in `tmpfs`."""
    tmpfs: dict[str, str] = Field(default_factory=dict)
    """Mount point to options, e.g. `{"/tmp": "size=256m,exec"}`.

    A folder that the image has keeps its mode: give it to a user with `uid=1000`.
    """
    cap_add: tuple[str, ...] = ()
    """On top of none at all."""
    runtime: str | None = None
    """The engine's runtime, `runsc` for example; None is its default."""

    timeout_s: float = Field(default=60.0, gt=0)
    """Deadline of a command that names none."""
    output_head_bytes: int = Field(default=512 << 10, ge=0, le=32 << 20)
    output_tail_bytes: int = Field(default=512 << 10, ge=0, le=32 << 20)
    keep_background: bool = False
    """True: what a command leaves running lives until the container goes."""

    start_timeout_s: float = Field(default=120.0, gt=0)
    """From the start of `create` to the first answer of the session; waiting is not counted."""
    engine_timeout_s: float = Field(default=60.0, gt=0)
    """One request to the engine."""
    reconnect_s: float = Field(default=30.0, ge=0)
    """How long a running environment waits for an engine that went away."""
    ttl_s: int = Field(default=4 * 3600, gt=0)
    """A container that hears nothing for this long ends itself. A run makes it longer than deadline
    and scoring, and refuses one that is shorter."""
    lease_s: float = Field(default=3600.0, gt=0)
    """How long an environment that a weight update detached waits for its episode to go on."""
    snapshot: bool = False
    """Keep the file system as an image at a detach, for the case that its container is lost."""
    pause_after_s: float | None = Field(default=None, gt=0)
    """`docker pause` an environment that waits longer than this for its next command."""

    max_starting: int = Field(default=4, gt=0)
    """Starts at once; 16 at once took 3.4 s each and no less in all."""
    max_live: int = Field(default=256, gt=0)
    """Containers of episodes."""
    max_commands: int = Field(default=256, gt=0)
    """Commands at once."""
    max_rewards: int = Field(default=16, gt=0)
    """Containers of judges; their own limit, so that episodes and judges never wait in a circle."""
    pool_size: int = Field(default=0, ge=0)
    """Containers kept ready for each image in use; no label says whose episode they get."""

    @classmethod
    def parse(cls, subconf: Mapping[str, Any] | DockerConfig) -> DockerConfig:
        """Check a section. Raises ConfigError naming each bad field and its value."""
        if isinstance(subconf, DockerConfig):
            return subconf
        try:
            return cls.model_validate(dict(subconf))
        except ValidationError as error:
            faults = [
                f"{'.'.join(map(str, fault['loc']))}: {fault['input']!r}: {fault['msg']}"
                for fault in error.errors()
            ]
            raise ConfigError("docker environment: " + "; ".join(faults)) from error
