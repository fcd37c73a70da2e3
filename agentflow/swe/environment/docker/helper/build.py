"""Build the helper for every machine: `python -m agentflow.swe.environment.docker.helper.build`.

The cross-compiler is `ziglang` from PyPI, pinned, needed only here. The same source gives the same
bytes on every machine, so a test rebuilds and compares. `--out DIR` writes elsewhere.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from agentflow.swe.environment.docker.helper import FOLDER, MACHINES

ZIG = "ziglang==0.13.0"
FLAGS = (
    "-std=c11",
    "-D_GNU_SOURCE",
    "-Os",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-static",
    "-s",
    "-ffunction-sections",
    "-fno-sanitize=undefined",
    "-fno-ident",
    "-Wl,--gc-sections",
    "-Wl,--build-id=none",
)


def compiler() -> tuple[list[str], dict[str, str]]:
    """Return the compiler's argv and environment, fetching it into the cache when it is missing."""
    cache = Path(os.environ.get("AGENTFLOW_CACHE", Path.home() / ".cache" / "agentflow"))
    folder = cache / ZIG.replace("==", "-")
    if not (folder / "ziglang" / "__main__.py").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as fetched:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            subprocess.run([*pip, "--target", fetched, ZIG], check=True)
            shutil.copytree(fetched, folder, dirs_exist_ok=True)
    return [sys.executable, "-m", "ziglang", "cc"], {**os.environ, "PYTHONPATH": str(folder)}


def build(out: Path) -> list[Path]:
    """Compile for every machine into `out`; returns the binaries."""
    argv, env = compiler()
    out.mkdir(parents=True, exist_ok=True)
    sources = sorted(path.name for path in FOLDER.glob("*.c"))
    made = []
    for machine in sorted(set(MACHINES.values())):
        target = out / f"helper-{machine}"
        command = [*argv, "-target", f"{machine}-linux-musl", *FLAGS, *sources, "-o", str(target)]
        subprocess.run(command, cwd=FOLDER, env=env, check=True)
        target.chmod(0o755)
        made.append(target)
    return made


def main() -> None:
    """Build into the package, or into `--out`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER / "bin")
    for path in build(parser.parse_args().out.resolve()):
        sys.stdout.write(f"{path} {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
