"""A server on this machine is its owner's, and nobody's when the owner is gone."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from typing import TYPE_CHECKING

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


def test_a_server_dies_with_a_killed_owner(tmp_path: Path) -> None:
    """No server stays where its owner was killed and could not stop it."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o755)
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    server = os.pidfd_open(int(owner.stdout.readline()))
    ended = select.poll()
    ended.register(server, select.POLLIN)
    try:
        assert not ended.poll(0)
        owner.communicate()
        assert ended.poll(30_000)
    finally:
        os.close(server)
