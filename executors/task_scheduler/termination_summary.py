"""Why samples ended: aborts classified, annotated and made harmless; endings counted by class.

The classes are `TerminationClass`'s eight, and `executors.termination` knows which cause is in
which. Here stands what the scheduler adds: exceptions that a handler let escape.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from agentflow.errors import AgentflowError, EpisodeError
from agentflow.outcomes import make_fallback
from agentflow.types import Blame, Cause, Ending, TerminationClass
from executors.termination import classify

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agentflow.types import RolloutSample

REASON: Final = "_termination_reason"
AGENT_REASON: Final = "_termination_reason_agent"
ABORT: Final = "_abort"

_CAUSE_OF_ABORT: Final = {
    TerminationClass.AGENT_TIMEOUT: Cause.TIME_LIMIT,
    TerminationClass.INFRA_CONN: Cause.ENGINE_UNREACHABLE,
    TerminationClass.INFRA_SANDBOX: Cause.ENV_DIED,
    TerminationClass.INFRA_OTHER: Cause.HANDLER_FAILED,
}

_TEXTS: Final = (
    (
        TerminationClass.INFRA_CONN,
        (
            r"connection|connect call|unreachable|reset by peer|broken pipe|name resolution"
            r"|remote end closed|server disconnected|\b50[234]\b"
        ),
    ),
    (
        TerminationClass.INFRA_SANDBOX,
        r"sandbox|container|docker|podman|image|no space left|cannot allocate memory",
    ),
    (TerminationClass.AGENT_TIMEOUT, r"timed? ?-?out|deadline"),
)
"""What a message must say, looked for in this order: "connection timed out" is the connection's."""


class HandlerFailed(EpisodeError):
    """A handler let something escape that is not agentflow's own; its cause says what."""

    cause = Cause.HANDLER_FAILED
    phase = "run"


# --- classes ----------------------------------------------------------------------------------


def classify_abort(error: BaseException | str) -> TerminationClass:
    """Tell which of `agent_timeout`, `infra_conn`, `infra_sandbox`, `infra_other` an abort is.

    Types are believed first, along the chain of causes; the text decides only where none is known.
    """
    if isinstance(error, str):
        return _classify_text(error)
    for link in _chain(error):
        kind = _classify_type(link)
        if kind is not None:
            return kind
    return _classify_text(" / ".join(str(link) for link in _chain(error)))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Give the error, what is in it where it is a group, and what each was raised from."""
    links: list[BaseException | None] = [error]
    seen: set[int] = set()
    while links:
        link = links.pop(0)
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        if isinstance(link, BaseExceptionGroup):
            links += link.exceptions
        links.append(link.__cause__ or (None if link.__suppress_context__ else link.__context__))


def _classify_type(error: BaseException) -> TerminationClass | None:
    if isinstance(error, HandlerFailed):
        return None  # says nothing by itself: what it was raised from does
    if isinstance(error, EpisodeError):
        kind = classify(error.ending(), reward=0.0)
        return kind if kind in _CAUSE_OF_ABORT else None
    if isinstance(error, ConnectionError) or _of_http_client(error):
        return TerminationClass.INFRA_CONN
    if isinstance(error, TimeoutError):  # with an error number it is a socket's
        return (
            TerminationClass.AGENT_TIMEOUT if error.errno is None else TerminationClass.INFRA_CONN
        )
    return None


def _of_http_client(error: BaseException) -> bool:
    """Whether aiohttp defined it; asked by name, so that nothing is imported for it."""
    return any(base.__module__.partition(".")[0] == "aiohttp" for base in type(error).__mro__)


def _classify_text(text: str) -> TerminationClass:
    for kind, pattern in _TEXTS:
        if re.search(pattern, text, re.IGNORECASE):
            return kind
    return TerminationClass.INFRA_OTHER


def classify_termination(reward: float, reason: str | None) -> TerminationClass:
    """Fold a reward and a reason (a `Cause` or a class) into one of the eight classes.

    What nobody gave a reason for was not judged by anybody: `infra_other`.
    """
    if reason in _CAUSES:
        return classify(Ending(cause=Cause(reason), phase=""), reward=reward)
    if reason in {TerminationClass.RESOLVED, TerminationClass.WRONG_ANSWER}:
        submitted = Ending(cause=Cause.SUBMITTED, phase="")
        return classify(submitted, reward=reward)
    return TerminationClass(reason) if reason in _CLASSES else TerminationClass.INFRA_OTHER


_CAUSES: Final = frozenset(map(str, Cause))
_CLASSES: Final = frozenset(map(str, TerminationClass))


# --- aborts -----------------------------------------------------------------------------------


def abort_sample(sample: RolloutSample, error: EpisodeError, *, phase: str) -> None:
    """End a sample that raised: reward 0.0, the two-token dummy, the reason.

    The agent's own reason is kept beside the one found here. What the policy caused scores 0 and
    counts; what the infrastructure caused is out of the loss and of its group's statistics. The
    dummy's mask is 0: no gradient either way.
    """
    agent_reason = sample.metadata.get(REASON)
    if agent_reason is not None:
        sample.metadata[AGENT_REASON] = agent_reason
    if isinstance(error, HandlerFailed):
        kind = classify_abort(error)
        cause = _CAUSE_OF_ABORT[kind]
    else:
        kind, cause = classify(error.ending(), reward=0.0), error.cause
    make_fallback(sample, Ending(cause=cause, phase=phase, message=str(error)))
    sample.remove_sample = cause.blame is Blame.INFRASTRUCTURE
    sample.termination = kind
    sample.metadata[REASON] = str(kind)


def _annotate_abort(
    sample: RolloutSample,
    *,
    error: BaseException,
    phase: str,
    window: tuple[float, float],
    node_ip: str | None,
    turns: int,
) -> None:
    """Attach what a person needs to find out why; `window` is the run in seconds of the epoch."""
    root = list(_chain(error))[-1]
    sample.metadata[ABORT] = {
        "phase": phase,
        "window": list(window),
        "node_ip": node_ip,
        "turns": turns,
        "error": type(root).__name__,
        "message": str(root) if isinstance(error, AgentflowError) else str(error),
    }


# --- summary ----------------------------------------------------------------------------------


def termination_summary(samples: Iterable[RolloutSample]) -> dict[str, Any]:
    """Count ended samples by class, and list what is known of the aborts."""
    counts: Counter[str] = Counter()
    aborts: list[Mapping[str, Any]] = []
    total = masked = 0
    for sample in samples:
        total += 1
        masked += sample.remove_sample
        counts[str(sample.termination)] += 1
        if ABORT in sample.metadata:
            who = {"uid": sample.episode.uid, "replica_index": sample.episode.replica_index}
            aborts.append({**who, "class": sample.termination, **sample.metadata[ABORT]})
    return {
        "samples": total,
        "masked": masked,
        "by_class": {str(kind): counts[kind] for kind in TerminationClass},
        "aborts": aborts,
    }
