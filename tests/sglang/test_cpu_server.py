"""A server on this machine is its owner's, and nobody's when the owner is gone."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

OWNER = """
import os, signal, sys
from pathlib import Path
from agentflow.engine.sglang_cpu import CpuServer, Layout

server = CpuServer(Layout(root=Path(sys.argv[1])), Path(sys.argv[1]))
server.start()
print(server._process.pid, flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("late", [False, True])
def test_a_server_dies_with_a_killed_owner(tmp_path: Path, *, late: bool) -> None:
    """No server stays where its owner was killed, not even as the server was being started."""
    script(tmp_path / "bin" / "python", "exec sleep 600")
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    if late:  # it comes to ask for the signal when there is no owner any more
        real = shutil.which("setpriv")
        script(tmp_path / "early" / "setpriv", f'read -r _ < {gate}\nexec {real} "$@"')
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": f"{tmp_path / 'early'}:{os.environ['PATH']}"},
    )
    assert owner.stdout is not None
    server = os.pidfd_open(int(owner.stdout.readline()))
    ended = select.poll()
    ended.register(server, select.POLLIN)
    try:
        assert not ended.poll(0)
        owner.communicate()
        if late:
            gate.write_text("go on\n")
        assert ended.poll(30_000)
    finally:
        os.close(server)


def script(path: Path, text: str) -> None:
    """Write a program."""
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
