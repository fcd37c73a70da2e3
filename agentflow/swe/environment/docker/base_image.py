"""Build the image of the tasks that ship, without a registry.

`python -m agentflow.swe.environment.docker.base_image [--tag TAG] [--package NAME ...]` cuts bash,
git and Python out of this machine's own Debian files, adds Python packages from PyPI, and imports
the result. `FROM` that tag then builds any image that a Dockerfile can say without a network.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentflow.errors import ConfigError
from agentflow.runner import AsyncioRunner
from agentflow.swe.environment.docker.engine import Engine
from agentflow.swe.environment.docker.images import OURS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

DEBIAN_PACKAGES = (
    "base-files",
    "bash",
    "coreutils",
    "dash",
    "diffutils",
    "findutils",
    "git",
    "grep",
    "gzip",
    "libc-bin",
    "libc6",
    "mawk",
    "patch",
    "procps",
    "sed",
    "tar",
    "util-linux",
    "python3",
    "python3-minimal",
    "libpython3-stdlib",
)
PYTHON_PACKAGES = ("pytest==8.3.5", "setuptools==75.8.0")
RECIPE_LABEL = "agentflow.recipe"
LEFT_OUT = re.compile(
    r"^/usr/share/(man|doc|locale|info|lintian|bug|bash-completion)(/|$)|/gconv(/|$)|\.a$"
    r"|^/(var|tmp|proc|sys|dev|run|root|home|boot)(/|$)"
)
MERGED = re.compile(r"^/(bin|sbin|lib|lib64)(?=/|$)")
"""Folders that are links into /usr on a Debian since 12."""
LIBRARY = re.compile(r"\s(/\S+\.so\S*) \(0x")
EPOCH = 1_700_000_000
"""Time of what we make; a package's files keep theirs, or Python would not use its caches."""
USER = 1000
USERS = """root:x:0:0:root:/root:/bin/bash
agent:x:1000:1000::/home/agent:/bin/bash
nobody:x:65534:65534::/:/usr/sbin/nologin
"""
GROUP = "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n"
SETTINGS = (
    # Every bash reads the users unless it has a SHELL, and every part of the locale that is not
    # C's: with these two it starts in five sixths of the time that it takes with LANG=C.UTF-8.
    "ENV PATH=/usr/local/bin:/usr/bin:/bin HOME=/home/agent SHELL=/bin/bash",
    "ENV LC_CTYPE=C.UTF-8 PYTHONDONTWRITEBYTECODE=1",
    "USER 1000:1000",
    "WORKDIR /testbed",
    'CMD ["/bin/bash"]',
)
BUILD_TIMEOUT_S = 300.0


def recipe(packages: Sequence[str]) -> str:
    """Name what an image is made of: this file, the packages and their versions here."""
    versions = _dpkg("-W", "-f", "${Package}=${Version}\n", *_debian_packages())
    text = "\0".join([Path(__file__).read_text(), versions, *packages])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _debian_packages() -> list[str]:
    """Add the interpreter's own packages, whose names carry its version."""
    depends = _dpkg("-W", "-f", "${Depends}", "python3")
    found = re.search(r"python(3\.\d+)", depends)
    if found is None:
        raise ConfigError("Debian package python3: its dependencies name no python3.N")
    python = found[0]
    parts = (python, f"{python}-minimal", f"lib{python}-minimal", f"lib{python}-stdlib")
    return [*DEBIAN_PACKAGES, *parts]


def _dpkg(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["dpkg-query", *arguments], capture_output=True, text=True, check=True
        )
    except FileNotFoundError as error:
        raise ConfigError(
            "the base image is cut from Debian's files: no dpkg-query here"
        ) from error
    except subprocess.CalledProcessError as error:
        raise ConfigError(
            f"the base image needs Debian packages that are not installed: {error.stderr.strip()};"
            f" apt-get install {' '.join(DEBIAN_PACKAGES)}"
        ) from error
    return done.stdout


def _merged(path: str) -> str:
    return MERGED.sub(r"/usr/\1", path)


def _files() -> set[str]:
    """Return the packages' files, and the libraries that their programs load."""
    listed = _dpkg("-L", *_debian_packages()).splitlines()
    paths = {_merged(line) for line in listed if line.startswith("/") and line != "/."}
    paths = {path for path in paths if os.path.lexists(path) and not LEFT_OUT.search(path)}
    paths |= {cache for path in paths if (cache := _bytecode(path))}
    programs = [path for path in sorted(paths) if _is_program(path)]
    loaded = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    for found in LIBRARY.findall(loaded):
        library = _merged(found)
        paths |= {library, _merged(os.path.realpath(library))}
    return paths


def _bytecode(path: str) -> str | None:
    """Return the compiled form that Debian made of a module when it was installed.

    Without them every start of Python would compile what it imports, and pytest's takes a second.
    """
    if not path.startswith("/usr/lib/python3") or not path.endswith(".py"):
        return None
    folder, name = os.path.split(path)
    found = sorted(Path(folder, "__pycache__").glob(f"{name[:-3]}.cpython-3??.pyc"))
    return str(found[-1]) if found else None


def _is_program(path: str) -> bool:
    file_path = Path(path)
    if file_path.is_symlink() or not file_path.is_file():
        return False
    with file_path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _member(name: str, *, mode: int = 0o755, uid: int = 0) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.mode, member.uid, member.gid, member.mtime = mode, uid, uid, EPOCH
    return member


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = int(member.mtime)
    return member


def write_root(out: Path, packages: Sequence[str]) -> None:
    """Write a root file system as a tar file."""
    with tarfile.open(out, "w") as tar:
        for name in ("proc", "sys", "dev", "run", "root", "home"):
            _add_folder(tar, name)
        _add_folder(tar, "tmp", mode=0o1777)
        _add_folder(tar, "home/agent", uid=USER)
        _add_folder(tar, "testbed", uid=USER)
        for name in ("bin", "sbin", "lib", "lib64"):
            _add_link(tar, name, f"usr/{name}")
        paths = _files()
        for path in sorted(paths):
            tar.add(path, path[1:], recursive=False, filter=_plain)
        for name, target in (("usr/bin/awk", "mawk"), ("usr/bin/python", "python3")):
            if f"/{name}" not in paths:
                _add_link(tar, name, target)
        _add_text(tar, "etc/passwd", USERS)
        _add_text(tar, "etc/group", GROUP)
        if packages:
            _add_python_packages(tar, packages)


def _add_folder(tar: tarfile.TarFile, name: str, *, mode: int = 0o755, uid: int = 0) -> None:
    member = _member(name, mode=mode, uid=uid)
    member.type = tarfile.DIRTYPE
    tar.addfile(member)


def _add_link(tar: tarfile.TarFile, name: str, target: str) -> None:
    member = _member(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    tar.addfile(member)


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    member = _member(name, mode=0o644)
    member.size = len(text)
    tar.addfile(member, io.BytesIO(text.encode()))


def _add_python_packages(tar: tarfile.TarFile, packages: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--compile"]
        subprocess.run(
            [*pip, "--root-user-action=ignore", "--target", folder, *packages], check=True
        )
        for path in sorted(Path(folder).rglob("*")):
            name = path.relative_to(folder)
            if name.parts[0] != "bin":
                tar.add(path, f"usr/lib/python3/dist-packages/{name}", False, filter=_plain)


def build(client: Any, tag: str, packages: Iterable[str] = PYTHON_PACKAGES) -> tuple[str, bool]:
    """Build the image unless the engine has it; returns its id and whether it was built."""
    packages = list(packages)
    made_of = recipe(packages)
    for image in client.images(filters={"label": f"{RECIPE_LABEL}={made_of}"}):
        if tag in (image.get("RepoTags") or ()):
            return str(image["Id"]), False
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root.tar"
        write_root(root, packages)
        repository, _, version = tag.partition(":")
        client.import_image(
            src=str(root),
            repository=repository,
            tag=version or "latest",
            changes=[*SETTINGS, f"LABEL {RECIPE_LABEL}={made_of}"],
        )
    return str(client.inspect_image(tag)["Id"]), True


async def ensure(
    tag: str, packages: Sequence[str] = PYTHON_PACKAGES, *, docker_host: str | None = None
) -> tuple[str, bool]:
    """Build the image on an engine unless it has it; returns its id and whether it was built."""
    runner = AsyncioRunner()
    engine = Engine(host=docker_host, timeout_s=BUILD_TIMEOUT_S, runner=runner)
    try:
        image, built = await engine.call(lambda client: build(client, tag, packages))
        return image, built
    finally:
        await engine.close()
        runner.close()


def main() -> None:
    """Build from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", default=f"{OURS}:latest")
    parser.add_argument("--package", action="append", help="a Python package; default: pytest")
    arguments = parser.parse_args()
    packages = arguments.package or PYTHON_PACKAGES
    image, built = asyncio.run(ensure(arguments.tag, packages))
    sys.stdout.write(f"{arguments.tag} {image} {'built' if built else 'is up to date'}\n")


if __name__ == "__main__":
    main()
