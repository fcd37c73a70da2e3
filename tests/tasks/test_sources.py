"""Sources: trees are read exactly, and nothing leads out of them."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from typing import TYPE_CHECKING

import pytest

from agentflow.errors import PreprocessFailed
from agentflow.swe.tasks import materialise
from agentflow.swe.tasks.gitwire import difference, fast_import_stream, git, read_commit
from agentflow.swe.tasks.pypi import FetchFailed, fetch_sdist
from agentflow.swe.tasks.tree import (
    Mode,
    TreeFile,
    UnsafePath,
    read_folder,
    read_sdist,
    without_escaping_links,
)

if TYPE_CHECKING:
    from pathlib import Path

    from agentflow.swe.tasks.tree import Tree

ODD: Tree = {
    "plain.txt": TreeFile(data=b"one\r\ntwo"),
    "latin.txt": TreeFile(data=b"gr\xfc\xdfe\n"),
    "binary.bin": TreeFile(data=bytes(range(256))),
    "empty": TreeFile(data=b""),
    'we "ird\\\n\udcff name': TreeFile(data=b"x\n"),
    "run.sh": TreeFile(data=b"#!/bin/sh\n", mode=Mode.EXECUTABLE),
    "link": TreeFile(data=b"plain.txt", mode=Mode.LINK),
    ".gitattributes": TreeFile(data=b"* text eol=crlf ident\n"),
}


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """A source archive with these members."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    """A member that is no file."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


def test_a_tree_survives_git_byte_by_byte(tmp_path: Path) -> None:
    """Modes, links, odd names and odd bytes come back from a commit as they went in."""
    repo = str(tmp_path)
    git(["--git-dir", repo, "init", "-q", "--bare"])
    git(["--git-dir", repo, "fast-import", "--quiet", "--done"], stdin=fast_import_stream(ODD))
    assert read_commit(repo, "refs/heads/main") == ODD


def test_the_difference_of_trees_is_a_patch_that_applies(tmp_path: Path) -> None:
    """New, changed, deleted, binary and non-UTF-8 files: `git apply` makes one tree the other."""
    after = {
        **{path: file for path, file in ODD.items() if path not in {"empty", "link"}},
        "plain.txt": TreeFile(data=b"one\r\n2"),
        "latin.txt": TreeFile(data=b"gr\xfc\xdfe\xe4\n"),
        "binary.bin": TreeFile(data=bytes(range(255))),
        "new/file": TreeFile(data=b"\x00"),
    }
    for path, file in ODD.items():
        if file.mode is Mode.LINK:
            (tmp_path / path).symlink_to(file.data.decode())
        else:
            (tmp_path / path).write_bytes(file.data)
    (tmp_path / "run.sh").chmod(0o755)
    patch = difference(ODD, after)
    git(["apply", "--whitespace=nowarn"], stdin=patch.encode(), cwd=str(tmp_path))
    assert read_folder(tmp_path) == after


@pytest.mark.parametrize(
    ("path", "target", "stays"),
    [
        ("a/link", b"../b.txt", True),
        ("link", b"a/./deep/..", True),
        ("link", b"/etc/passwd", False),
        ("link", b"../outside", False),
        ("a/link", b"../../outside", False),
        ("a/link", b"../b/../../outside", False),
        ("link", b".git/config", False),
    ],
)
def test_links_that_lead_out_are_left_out(path: str, target: bytes, *, stays: bool) -> None:
    """A link stays only when its target, read as text, lies inside the repository."""
    tree = {path: TreeFile(data=target, mode=Mode.LINK), "b.txt": TreeFile(data=b"")}
    kept, left_out = without_escaping_links(tree)
    assert (path in kept, left_out) == (stays, () if stays else (path,))


def test_a_link_through_a_link_is_left_out() -> None:
    """`up -> sub/..`-like chains cannot be judged by their text, so they are not kept."""
    tree = {
        "dir": TreeFile(data=b"a/b", mode=Mode.LINK),
        "sly": TreeFile(data=b"dir/../../x", mode=Mode.LINK),
    }
    assert without_escaping_links(tree)[1] == ("sly",)


def test_reading_a_folder_follows_no_link(tmp_path: Path) -> None:
    """A link out of the folder is read as a link: not one byte of its target is read."""
    (tmp_path / "secret").write_text("secret")
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "file").write_text("x")
    (repo / "out").symlink_to("../secret")
    (repo / "outdir").symlink_to(tmp_path)
    tree = read_folder(repo)
    assert tree["out"] == TreeFile(data=b"../secret", mode=Mode.LINK)
    assert set(tree) == {"file", "out", "outdir"}


@pytest.mark.parametrize(
    "member",
    [
        (tarfile.TarInfo("../x"), b""),
        (tarfile.TarInfo("/etc/x"), b""),
        (tarfile.TarInfo("p-1/a/../../../x"), b""),
        link("p-1/hard", "/etc/passwd", tarfile.LNKTYPE),
        link("p-1/fifo", "", tarfile.FIFOTYPE),
    ],
)
def test_archives_cannot_write_outside(member: tuple[tarfile.TarInfo, bytes]) -> None:
    """A member that leaves its folder, or is no plain file, refuses the whole archive."""
    with pytest.raises(UnsafePath):
        read_sdist(archive((tarfile.TarInfo("p-1/ok"), b"x"), member))


def test_what_is_no_archive_is_refused() -> None:
    """A broken download is named as such."""
    with pytest.raises(ValueError, match="not a source archive"):
        read_sdist(b"<html>")


def test_a_git_source_is_read_at_its_commit(tmp_path: Path) -> None:
    """Neither the working tree nor `export-ignore` has a say in what the repository is."""

    def run(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        command = ["git", *identity, "-C", str(tmp_path), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    run("init", "-q")
    (tmp_path / ".gitattributes").write_text("kept.py export-ignore\n")
    (tmp_path / "kept.py").write_text("old\n")
    run("add", "-A")
    run("commit", "-qm", "one")
    commit = run("rev-parse", "HEAD")
    (tmp_path / "kept.py").write_text("new\n")
    task = {
        "instance_id": "g",
        "problem_statement": "p",
        "FAIL_TO_PASS": ["t.py::t"],
        "base_commit": commit,
        "source": {"type": "git", "url": str(tmp_path)},
    }
    stream = materialise(task).base_stream
    assert stream is not None
    assert b"old\n" in stream
    assert b"new\n" not in stream
    with pytest.raises(PreprocessFailed, match="g: source git: "):
        materialise({**task, "base_commit": "f" * 40})


def test_a_cached_archive_is_used_without_asking_anybody(tmp_path: Path) -> None:
    """The second run of a task needs no network."""
    place = tmp_path / "pypi" / "demo-1.0.tar.gz"
    place.parent.mkdir()
    place.write_bytes(b"archive")
    digest = hashlib.sha256(b"archive").hexdigest()
    assert fetch_sdist("Demo", "1.0", sha256=digest, cache=tmp_path) == b"archive"


def test_a_cache_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    """A file in the place of the cache's folder is named, with the release that was wanted."""
    (tmp_path / "cache").write_text("")
    with pytest.raises(FetchFailed, match=r"demo 1\.0: .*cache"):
        fetch_sdist("demo", "1.0", sha256=None, cache=tmp_path / "cache")
