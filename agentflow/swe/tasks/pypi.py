"""Source archives from PyPI, through pip, kept in the cache under their digest.

pip unpacks a source archive to ask its build backend for metadata, which would download that
backend and run the package's own build code. Stand-in backends that answer from PKG-INFO make a
download a download. Everything here blocks: call it off the loop.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_STAND_INS = Path(__file__).parent / "pypi_backends"
_PIP_TIMEOUT_S = 300.0


class FetchFailed(Exception):
    """The archive could not be had, or is not the one that was pinned."""


def cache_dir() -> Path:
    """Where downloads are kept: `$AGENTFLOW_CACHE`, else `~/.cache/agentflow`."""
    named = os.environ.get("AGENTFLOW_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "agentflow"


def fetch_sdist(name: str, version: str, *, sha256: str | None, cache: Path | None = None) -> bytes:
    """Return the source archive of one release; raises FetchFailed.

    Safe beside other processes that fetch the same: each downloads to a folder of its own, and a
    rename publishes it. A cached archive that does not match `sha256` is fetched again.
    """
    place = (cache or cache_dir()) / "pypi" / f"{name.lower()}-{version}.tar.gz"
    if (cached := _read(place)) is not None and _matches(cached, sha256):
        return cached
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=place.parent) as folder:
            archive = _download(name, version, Path(folder))
            data = archive.read_bytes()
            if not _matches(data, sha256):
                raise FetchFailed(
                    f"{name} {version}: sha256 is {hashlib.sha256(data).hexdigest()}, "
                    f"expected {sha256}"
                )
            archive.replace(place)
    except OSError as exc:
        raise FetchFailed(f"{name} {version}: {exc}") from exc
    return data


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _matches(data: bytes, sha256: str | None) -> bool:
    return sha256 is None or hashlib.sha256(data).hexdigest() == sha256


def _download(name: str, version: str, folder: Path) -> Path:
    """Try the stand-in backends first, then pip's own way for a backend that has none."""
    stand_in = ["--no-build-isolation", "--use-pep517"]
    complaints: list[str] = []
    for flags, path in ((stand_in, str(_STAND_INS)), (stand_in[:1], str(_STAND_INS)), ((), None)):
        said = _pip(name, version, folder=folder, flags=flags, python_path=path)
        archives = [file for file in folder.iterdir() if file.name.endswith((".tar.gz", ".zip"))]
        if not said and len(archives) == 1:
            return archives[0]
        complaints.append(said)
        if "No module named pip" in said or "No matching distribution" in said:
            break
    raise FetchFailed(f"pip download {name}=={version} failed: {complaints[-1]}")


def _pip(
    name: str, version: str, *, folder: Path, flags: Sequence[str], python_path: str | None
) -> str:
    """Run pip; return an empty string, or its complaint."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if python_path:
        env["PYTHONPATH"] = python_path
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-binary", name, *flags, "-d", str(folder), f"{name}=={version}"]
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            env=env,
            cwd=folder,
            timeout=_PIP_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_PIP_TIMEOUT_S:g} s"
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return "; ".join((errors or lines)[-3:]) or f"exit code {done.returncode}"
