"""TokenRecord: one episode's tokens, exactly as sent and received, never re-tokenised.

Owns the ids, log-probabilities, masks and weight versions of an episode. It only grows: by rendered
prompt ids, by generated ids, by rendered observation ids. The next prompt *is* the record, so it
extends the previous ids exactly, and continuing an aborted turn is generating again.

Eight bytes a token (id, log-prob) plus one small span per uninterrupted run of tokens of one kind;
growth by half keeps that within twelve with spare capacity, and appending amortised O(1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

ScalarT = TypeVar("ScalarT", bound=np.generic)

NO_VERSION = -1
"""Weight version of a token that no engine generated."""

_FIRST_CAPACITY = 256


class TokenRecord:
    """Append-only token arrays of one episode; a `TokenSink` for engines."""

    def __init__(self) -> None:
        self._ids: NDArray[np.int32] = np.empty(_FIRST_CAPACITY, np.int32)
        self._logprobs: NDArray[np.float32] = np.empty(_FIRST_CAPACITY, np.float32)
        self._len = 0
        self._runs: list[tuple[int, int]] = []
        """Runs of tokens of one kind: start, and the weight version that generated it, or
        NO_VERSION for rendered tokens. Plain tuples: the garbage collector forgets them."""
        self._prompt_len: int | None = None

    def __len__(self) -> int:
        return self._len

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the spare capacity, whose bytes are whatever memory held."""
        used = {
            "_ids": self._ids[: self._len].copy(),
            "_logprobs": self._logprobs[: self._len].copy(),
        }
        return {**self.__dict__, **used}

    # --- growing ------------------------------------------------------------------------------

    def extend_rendered(self, ids: Sequence[int]) -> None:
        """Append ids that were rendered, not sampled: a prompt or an observation (mask 0)."""
        self._append(ids, (0.0,), NO_VERSION)

    def append(self, ids: Sequence[int], logprobs: Sequence[float], version: int) -> None:
        """Append ids that an engine generated (mask 1); `logprobs` in nats, equally long."""
        if len(ids) != len(logprobs):
            raise ValueError(f"{len(ids)} ids but {len(logprobs)} logprobs; they must pair up")
        if version < 0:
            raise ValueError(f"weight version {version} must not be negative")
        before = self._len
        self._append(ids, logprobs, version)
        if self._prompt_len is None and len(ids):
            self._prompt_len = before

    def truncate(self, length: int) -> None:
        """Forget everything from `length` on; only for an attempt that restarts clean."""
        if not 0 <= length <= self._len:
            raise ValueError(f"length {length} is outside 0..{self._len}")
        self._len = length
        self._ids, self._logprobs = self._ids.copy(), self._logprobs.copy()  # views keep theirs
        while self._runs and self._runs[-1][0] >= length:
            self._runs.pop()
        if self._prompt_len is not None and length <= self._prompt_len:
            self._prompt_len = None

    def _append(self, ids: Sequence[int], logprobs: Sequence[float], version: int) -> None:
        """Append ids with a log-probability each, or one for all."""
        if not len(ids):
            return
        end = self._len + len(ids)
        self._reserve(end)
        if len(ids) == 1:  # what a stream mostly brings: numpy takes it three times as fast
            self._ids[self._len] = ids[0]
            self._logprobs[self._len] = logprobs[0]
        else:
            self._ids[self._len : end] = ids
            self._logprobs[self._len : end] = logprobs
        if not self._runs or self._runs[-1][1] != version:
            self._runs.append((self._len, version))
        self._len = end

    def _reserve(self, needed: int) -> None:
        capacity = len(self._ids)
        if needed > capacity:
            grown = max(needed, capacity + capacity // 2)
            self._ids = _grown(self._ids, self._len, grown)
            self._logprobs = _grown(self._logprobs, self._len, grown)

    # --- reading ------------------------------------------------------------------------------

    @property
    def ids(self) -> NDArray[np.int32]:
        """Shape (n,), read-only view: the context so far, which is the next prompt."""
        return _frozen(self._ids[: self._len])

    @property
    def prompt_len(self) -> int:
        """Tokens before the first generated one; all of them while there is none."""
        return self._len if self._prompt_len is None else self._prompt_len

    @property
    def prompts(self) -> NDArray[np.int32]:
        """Shape (p,): the ids sent for the first generation."""
        return _frozen(self._ids[: self.prompt_len])

    @property
    def responses(self) -> NDArray[np.int32]:
        """Shape (r,): what came after, generated and observed."""
        return _frozen(self._ids[self.prompt_len : self._len])

    @property
    def rollout_log_prob(self) -> NDArray[np.float32]:
        """Shape (r,): nats, 0.0 for rendered tokens."""
        return _frozen(self._logprobs[self.prompt_len : self._len])

    @property
    def weight_versions(self) -> NDArray[np.int32]:
        """Shape (r,): version that generated each token, NO_VERSION for rendered ones."""
        spans = list(self._spans())
        versions = np.array([version for _, _, version in spans], np.int32)
        return versions.repeat([end - start for start, end, _ in spans])[self.prompt_len :]

    def slice(
        self, start: int, end: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int32]]:
        """Copy ids, log-probs and versions of `[start, end)`; also while others append behind."""
        versions = np.empty(end - start, np.int32)
        for begun, ended, version in self._spans():
            if ended > start and begun < end:
                versions[max(begun, start) - start : min(ended, end) - start] = version
        return self._ids[start:end].copy(), self._logprobs[start:end].copy(), versions

    @property
    def response_mask(self) -> NDArray[np.int8]:
        """Shape (r,): 1 for generated tokens."""
        return mask_of(self.weight_versions)

    @property
    def generated(self) -> int:
        """How many tokens were generated."""
        return sum(end - start for start, end, version in self._spans() if version != NO_VERSION)

    @property
    def oldest_version(self) -> int | None:
        """The lowest weight version that generated a token; None while there is none."""
        return min((v for _, v in self._runs if v != NO_VERSION), default=None)

    def _spans(self) -> Iterator[tuple[int, int, int]]:
        """Start, end and version of each run."""
        runs = list(self._runs)  # others may append
        ends = [start for start, _ in runs[1:]]
        ends.append(self._len)
        return ((start, end, version) for (start, version), end in zip(runs, ends, strict=False))


def mask_of(versions: NDArray[np.int32]) -> NDArray[np.int8]:
    """Give 1 where an engine generated the token."""
    mask: NDArray[np.bool_] = versions != NO_VERSION
    return mask.view(np.int8)


def _grown(old: NDArray[ScalarT], used: int, capacity: int) -> NDArray[ScalarT]:
    new = np.empty(capacity, old.dtype)
    new[:used] = old[:used]
    return new


def _frozen(view: NDArray[ScalarT]) -> NDArray[ScalarT]:
    view.flags.writeable = False
    return view
