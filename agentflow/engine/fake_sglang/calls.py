"""AdminCalls: everything of a FakeSglang but /generate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from agentflow.engine.fake_sglang import wire

if TYPE_CHECKING:
    from agentflow.engine.fake_sglang.server import FakeSglang

_MODES = ("abort", "retract", "in_place")
_UPDATES = ("from_disk", "from_tensor", "from_distributed")


class AdminCalls:
    """The handlers; `add_to` gives each its path."""

    def __init__(self, server: FakeSglang) -> None:
        self._server = server
        self.session = False
        """Whether a weight-update session is open, which tensors need."""

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Register every path."""
        router.add_get("/model_info", self._model_info)
        router.add_get("/server_info", self._server_info)
        router.add_get("/v1/models", self._models)
        router.add_get("/v1/loads", self._loads)
        router.add_get("/metrics", self._metrics)
        router.add_get("/ready", self._nothing)
        router.add_get("/health", self._health)
        router.add_get("/workers", self._workers)
        router.add_post("/abort_request", self._abort)
        router.add_post("/pause_generation", self._pause)
        router.add_post("/continue_generation", self._continue)
        router.add_post("/flush_cache", self._flush)
        router.add_post("/init_weights_update_group", self._succeed)
        router.add_post("/destroy_weights_update_group", self._succeed)
        router.add_post("/begin_weight_update", self._begin_update)
        router.add_post("/end_weight_update", self._end_update)
        for source in _UPDATES:
            router.add_post(f"/update_weights_{source}", self._update)

    # --- telling ------------------------------------------------------------------------------

    async def _model_info(self, request: web.Request) -> web.Response:
        self._note(request)
        version = self._server.scheduler.version
        named = {"model_path": "/nowhere/fake", "served_model_name": "fake", "is_generation": True}
        return web.json_response({**named, "weight_version": version})

    async def _server_info(self, request: web.Request) -> web.Response:
        self._note(request)
        options = self._server.options
        return web.json_response(
            {
                "version": "0.5.23",
                "context_length": None,
                "max_total_num_tokens": options.kv_tokens,
                "max_req_input_len": options.model.context_length - 6,
                "incremental_streaming_output": options.incremental,
                "enable_priority_scheduling": options.priority,
            }
        )

    async def _models(self, request: web.Request) -> web.Response:
        self._note(request)
        limit = self._server.options.model.context_length
        model = {"id": "fake", "object": "model", "owned_by": "sglang", "max_model_len": limit}
        return web.json_response({"object": "list", "data": [model]})

    async def _loads(self, request: web.Request) -> web.Response:
        self._note(request)
        options, scheduler = self._server.options, self._server.scheduler
        load = wire.load(scheduler, slots=options.slots, kv_tokens=options.kv_tokens)
        return web.json_response(load)

    async def _metrics(self, request: web.Request) -> web.Response:
        self._note(request)
        return web.Response(text=wire.metrics(self._server.scheduler))

    async def _workers(self, request: web.Request) -> web.Response:
        self._note(request)
        urls = self._server.options.workers
        if urls is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        workers = [{"id": url, "url": url, "is_healthy": True} for url in urls]
        return web.json_response({"workers": workers, "total": len(workers)})

    async def _nothing(self, request: web.Request) -> web.Response:
        self._note(request)
        return web.Response()

    async def _health(self, request: web.Request) -> web.Response:
        """Generate a token, as the real one does: no answer while paused."""
        self._note(request)
        await self._server.until(lambda: self._server.scheduler.pause_mode is None)
        return web.Response()

    # --- doing --------------------------------------------------------------------------------

    async def _abort(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        if self._server.faults.takes("lost_aborts"):
            return web.Response()
        if body.get("abort_all"):
            self._server.scheduler.abort_all()
        else:
            self._server.scheduler.abort(body["rid"])
        self._server.changed()
        return web.Response()

    async def _pause(self, request: web.Request) -> web.Response:
        mode = (await self._body(request)).get("mode", "abort")
        if mode not in _MODES:
            message = f"1 validation error: mode must be one of {_MODES}; got {mode!r}"
            error = {"object": "error", "message": message, "type": "Bad Request", "code": 400}
            return web.json_response(error, status=400)
        self._server.scheduler.pause(mode)
        self._server.changed()
        return _ok("Generation paused successfully.")

    async def _continue(self, request: web.Request) -> web.Response:
        await self._body(request)
        self._server.scheduler.resume()
        self._server.changed()
        return _ok("Generation continued successfully.")

    async def _flush(self, request: web.Request) -> web.Response:
        await self._body(request)
        if not self._server.scheduler.can_flush:
            return web.Response(status=400, text="Flush cache failed.\n")
        return web.Response(text=wire.FLUSHED)

    async def _update(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        call = request.path.removeprefix("/")
        if not self.session and call != "update_weights_from_disk":
            return _success(ok=False, message=wire.NO_SESSION.format(call=call))
        if self._server.faults.takes("refused_updates"):
            return _success(ok=False, message="Failed to get weights iterator: no such file.")
        await self._server.until(lambda: not self._server.scheduler.busy)  # or paused
        self._server.scheduler.version = body.get("weight_version") or "default"
        if body.get("flush_cache", True) and not self._server.scheduler.can_flush:
            return _success(ok=False, message=wire.NOT_FLUSHED)
        return _success(ok=True, message="Succeeded to update model weights.")

    async def _begin_update(self, request: web.Request) -> web.Response:
        await self._body(request)
        if self.session:
            return _success(ok=False, message=wire.SESSION_OPEN)
        self.session = True
        return _success(ok=True, message="Success")

    async def _end_update(self, request: web.Request) -> web.Response:
        await self._body(request)
        if not self.session:
            return _success(ok=False, message=wire.SESSION_CLOSED)
        self.session = False
        return _success(ok=True, message="Success")

    async def _succeed(self, request: web.Request) -> web.Response:
        await self._body(request)
        return _success(ok=True, message="Succeeded.")

    def _note(self, request: web.Request) -> None:
        self._server.calls.append(request.path)
        if self._server.faults.takes_call("failing_calls", request.path):
            raise web.HTTPInternalServerError(text="Internal Server Error")

    async def _body(self, request: web.Request) -> dict[str, Any]:
        self._note(request)
        raw = await request.read()
        body: dict[str, Any] = orjson.loads(raw) if raw else {}
        return body


def _ok(message: str) -> web.Response:
    return web.json_response({"message": message, "status": "ok"})


def _success(*, ok: bool, message: str) -> web.Response:
    answer = {"success": ok, "message": message, "num_paused_requests": 0}
    return web.json_response(answer, status=200 if ok else 400)
