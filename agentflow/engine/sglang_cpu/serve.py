"""CpuServer: one real SGLang server as a child process, ready when entered, gone when left."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

from agentflow.engine.sglang import SglangConfig, SglangEngine
from agentflow.errors import EngineUnreachable

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from agentflow.engine.sglang_cpu.install import Layout

READY_S = 420.0
"""50 to 130 s were seen on two free cores."""
_STOP_S = 20.0

FLAGS = [
    "--device",
    "cpu",
    "--attention-backend",
    "torch_native",
    "--sampling-backend",
    "pytorch",
    "--dtype",
    "float32",
    "--max-total-tokens",
    "16384",
    "--max-running-requests",
    "16",
    "--skip-server-warmup",
    "--enable-metrics",
    "--enable-priority-scheduling",
    "--default-priority-value",
    "0",
    "--incremental-streaming-output",
    "--sleep-on-idle",  # or its scheduler keeps a core busy for nothing
    "--decode-log-interval",
    "1",
]  # read as on a command line


_UNLESS_ORPHANED = '[ "$PPID" = "$1" ] || exit 1; shift; exec "$@"'
"""For `sh`: the signal never comes where the owner had died before it was asked for."""


class CpuServer:
    """`with CpuServer(layout, model) as server: server.url`. Its log stands beside the model."""

    def __init__(
        self, layout: Layout, model: Path, *, port: int | None = None, flags: tuple[str, ...] = ()
    ) -> None:
        """`flags` come after FLAGS and win over them."""
        self._layout = layout
        self._model = model
        self._port = port or _free_port()
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None
        self.log = layout.root / f"server-{self._port}.log"

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
        /,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the process, in its own process group; it dies with the thread that starts it."""
        command = [
            *("setpriv", "--pdeathsig", "KILL"),  # SGLang's processes do the same behind it
            *("sh", "-c", _UNLESS_ORPHANED, "sh", str(os.getpid())),
            *(str(self._layout.python), "-m", "sglang.launch_server"),
            *("--model-path", str(self._model), "--host", "127.0.0.1", "--port", str(self._port)),
            *FLAGS,
            *self._flags,
        ]
        switches = {
            "SGLANG_USE_CPU_ENGINE": "1",
            "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
            "OMP_WAIT_POLICY": "PASSIVE",  # or torch's threads spin while others want the cores
        }
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **switches},
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Wait until it answers. Raises EngineUnreachable with the end of its log."""
        try:
            asyncio.run(self._answers())
        except EngineUnreachable as error:
            end = self.log.read_text(errors="replace")[-2000:]
            raise EngineUnreachable(f"{error}; the log {self.log} ends: {end}") from error

    async def _answers(self) -> None:
        async with asyncio.TaskGroup() as group:
            alive = group.create_task(self._stays_alive())
            async with SglangEngine(SglangConfig(urls=(self.url,))) as engine:
                await engine.wait_ready(timeout_s=READY_S)
            alive.cancel()

    async def _stays_alive(self) -> None:
        while self._process is not None and self._process.poll() is None:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        raise EngineUnreachable(f"the server at {self.url} ended while starting")

    def stop(self) -> None:
        """End the process and its children. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, sign)
                process.wait(_STOP_S)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
