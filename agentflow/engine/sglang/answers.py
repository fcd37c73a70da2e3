"""SGLang's three shapes of error, and its ways to end a generation, as agentflow's own types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agentflow.errors import (
    EngineDied,
    EngineError,
    EngineOverloaded,
    EngineRejected,
    GenerationAborted,
)
from agentflow.types import FinishReason, GenerationResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentflow.engine.sglang.tokens import StreamEnd

_SERVER_ERROR = 500
_NOT_TAKEN = frozenset({429, 503})
"""A server's full queue; 429 is how a gateway in front of it sheds load."""
_PRIORITY_OFF = "priority is disabled"
_SHOWN = 600


def error_message(body: bytes) -> str:
    """Return what an error body says, whichever shape it has."""
    try:
        answer: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body[:_SHOWN].decode("utf-8", errors="replace").strip() or "(empty answer)"
    if isinstance(answer, dict):
        error = answer.get("error", answer)
        found = error.get("message", error.get("detail")) if isinstance(error, dict) else error
        if found is not None:
            return str(found)[:_SHOWN]
    return str(answer)[:_SHOWN]


def error_for_status(status: int, message: str) -> EngineError:
    """Return the exception for a request that was answered with an error."""
    if _PRIORITY_OFF in message:
        return EngineRejected(
            f"{message} (start the server with --enable-priority-scheduling, or send no priority)"
        )
    if status in _NOT_TAKEN:
        return EngineOverloaded(f"HTTP {status}: {message}")
    if status >= _SERVER_ERROR:
        return EngineDied(f"HTTP {status}: {message}")
    return EngineRejected(f"HTTP {status}: {message}")


def error_for_event(error: Any) -> EngineError:
    """Return the exception for an error that came as an event of a stream."""
    code = error.get("code") if isinstance(error, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return error_for_status(code if isinstance(code, int) else 400, str(message))


def result_of(end: StreamEnd) -> GenerationResult:
    """Return how a generation ended. Raises GenerationAborted or an EngineError for an abort."""
    reason = end.reason
    match reason.get("type"):
        case "stop":
            finish = FinishReason.STOP
        case "length":
            finish = FinishReason.LENGTH
        case "abort":
            raise _aborted(reason)
        case other:
            raise EngineDied(f"finish reason {other!r} is none of stop, length, abort")
    return GenerationResult(
        finish=finish,
        matched=reason.get("matched"),
        cached_tokens=end.cached_tokens,
        retractions=end.retractions,
    )


def _aborted(reason: Mapping[str, Any]) -> EngineError | GenerationAborted:
    """An abort with a status is the server's own error; without one somebody asked for it."""
    message, status = str(reason.get("message")), reason.get("status_code")
    if status is None:
        return GenerationAborted(message)
    if isinstance(status, int):
        return error_for_status(status, message)
    return EngineDied(f"aborted with status {status!r}: {message}")
