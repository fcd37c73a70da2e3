"""FakeScheduler: slots, KV, queue, pause modes, aborts, weights, as the real server does them.

Pure: `step` decodes one token for every running request; whoever drives it decides when.
Invariants: a request is waiting, running or finished; a finished one has a reason and stays as it
is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentflow.engine.fake_sglang.model import WINDOW

if TYPE_CHECKING:
    from agentflow.engine.fake_sglang.model import FakeModel

Reason = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class FakeRequest:
    """One generation on the server."""

    rid: str
    prompt: list[int]
    params: dict[str, Any]
    priority: int = 0
    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[list[Any]] = field(default_factory=list)
    """`[version, start, end]` of each run of tokens."""
    retractions: int = 0
    cached_tokens: int = 0
    abort_pending: bool = False
    reason: Reason | None = None

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self.reason is not None

    @property
    def context(self) -> int:
        """Tokens whose KV it needs."""
        return len(self.prompt) + len(self.output)


class FakeScheduler:
    """All requests of one server."""

    def __init__(
        self, model: FakeModel, *, slots: int, kv_tokens: int, max_queued: int | None, version: str
    ) -> None:
        self._model = model
        self._slots = slots
        self._kv_tokens = kv_tokens
        self._max_queued = max_queued
        self.version = version
        self.running: list[FakeRequest] = []
        self.waiting: list[FakeRequest] = []
        self.pause_mode: str | None = None
        self.ahead = False
        """Whether a step is on its way still that was begun with requests that have ended."""
        self.decoded = 0
        """Tokens decoded in all."""

    # --- requests -----------------------------------------------------------------------------

    def submit(self, request: FakeRequest) -> bool:
        """Queue a request; False when the queue is full."""
        if self._max_queued is not None and len(self.waiting) >= self._max_queued:
            return False
        request.cached_tokens = max(len(request.prompt) - 1, 0)
        self.waiting.append(request)
        return True

    def live(self, rid: str) -> bool:
        """Whether `rid` is waiting or running."""
        return any(request.rid == rid for request in (*self.running, *self.waiting))

    def abort(self, rid: str) -> None:
        """End `rid` if it is live, and, as SGLang does, every request whose rid begins with it."""
        if self.live(rid):
            self.abort_all(rid)

    def abort_all(self, prefix: str = "") -> None:
        """End every request whose rid begins with `prefix`."""
        for request in [r for r in self.waiting if r.rid.startswith(prefix)]:
            self.waiting.remove(request)
            request.reason = {"type": "abort", "message": "Abort in waiting queue"}
        for request in self.running:
            if request.rid.startswith(prefix):
                request.abort_pending = True

    def drop(self, request: FakeRequest) -> None:
        """End a request whose client went away."""
        if not request.finished:
            request.reason = {"type": "abort", "message": "Client disconnected"}
        for place in (self.running, self.waiting):
            if request in place:
                place.remove(request)

    # --- pause --------------------------------------------------------------------------------

    def pause(self, mode: str) -> None:
        """Stop decoding; new requests wait."""
        self.pause_mode = mode
        if mode == "abort":
            self.abort_all()
            for request in list(self.running):
                self._finish(request, _ABORTED)
        if mode == "retract":
            self.ahead = False
            for request in self.running:
                request.retractions += 1
            self.waiting[:0] = self.running
            self.running.clear()

    def resume(self) -> None:
        """Go on decoding."""
        self.pause_mode = None

    @property
    def busy(self) -> bool:
        """Whether `step` would do anything."""
        return self.pause_mode is None and bool(self.running or self.waiting or self.ahead)

    @property
    def can_flush(self) -> bool:
        """Whether no KV is in use, as far as the scheduler knows."""
        return not self.running and not self.ahead

    # --- decoding -----------------------------------------------------------------------------

    def step(self) -> None:
        """Admit what fits, then decode one token for each running request."""
        if self.pause_mode is not None:
            return
        self.ahead = False
        self.waiting.sort(key=lambda request: -request.priority)
        while self.waiting and len(self.running) < self._slots and self._fits(self.waiting[0]):
            self.running.append(self.waiting.pop(0))
        while not self._fits():
            self.waiting.insert(0, newest := self.running.pop())
            newest.retractions += 1
        for request in list(self.running):
            self._decode(request)

    def _fits(self, *more: FakeRequest) -> bool:
        """Whether KV holds a next token of all; one alone always has its way."""
        all_ = (*self.running, *more)
        return len(all_) <= 1 or sum(r.context + 1 for r in all_) <= self._kv_tokens

    def _decode(self, request: FakeRequest) -> None:
        tail = (request.prompt[-WINDOW:] + request.output[-WINDOW:])[-WINDOW:]
        length = len(request.prompt) + len(request.output)
        token, logprob = self._model.next_token(tail, length, self.version)
        if not request.versions or request.versions[-1][0] != self.version:
            request.versions.append([self.version, len(request.output), 0])
        request.output.append(token)
        request.logprobs.append(logprob)
        request.versions[-1][2] = len(request.output)
        self.decoded += 1
        reason = _ABORTED if request.abort_pending else self._natural_end(request, token)
        if reason is not None:
            self._finish(request, reason)

    def _natural_end(self, request: FakeRequest, token: int) -> Reason | None:
        params = request.params
        text = self._model.text(request.output)
        for stop in params.get("stop") or ():
            if stop in text:
                return {"type": "stop", "matched": stop}
        ends = {*(params.get("stop_token_ids") or ()), self._model.eos_id}
        if token in ends and not params.get("ignore_eos"):
            return {"type": "stop", "matched": token}
        room = self._model.context_length - 2 - len(request.prompt)
        budget = min(params.get("max_new_tokens", 128), room)
        if len(request.output) >= budget:
            return {"type": "length", "length": budget}
        return None

    def _finish(self, request: FakeRequest, reason: Reason) -> None:
        request.reason = dict(reason)
        self.running.remove(request)
        self.ahead = True


_ABORTED: Reason = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
