"""RecordedScript: a finished run, played back to the same ids, log-probabilities and versions.

Reads the `tokens/<episode key>.npz` files of a run directory, one an episode. An episode is found
by the key in its rid, and where the rid has none or the run did not record it, by its first prompt.
What is asked must be what was recorded, up to the first generated id that is still to come: any
other prompt is refused with the position at which it differs.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import numpy as np

from agentflow.engine.recorded_tokens import TOKENS_FOLDER, read_tokens, tokens_name
from agentflow.engine.rids import episode_key
from agentflow.engine.scripted import Continuation
from agentflow.errors import ConfigError, EngineRejected

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from agentflow.engine.recorded_tokens import RecordedTokens
    from agentflow.types import EpisodeId, GenerationRequest

_CACHED_EPISODES: Final = 256
"""Records kept in memory: as many as run at once on one engine, about 1 MB each at the most."""


def missing_records(run_dir: Path, episodes: Iterable[EpisodeId]) -> list[EpisodeId]:
    """Give those of `episodes` whose tokens a run directory does not hold."""
    return [one for one in episodes if not (run_dir / tokens_name(one.key)).is_file()]


class RecordedScript:
    """Plays the episodes of one run directory."""

    def __init__(self, run_dir: Path) -> None:
        """Raises ConfigError when the directory holds no recorded tokens."""
        self._run_dir = run_dir
        files = sorted((run_dir / TOKENS_FOLDER).glob("*.npz"))
        self._keys = dict.fromkeys(path.stem for path in files)
        if not self._keys:
            raise ConfigError(
                f"run directory {str(run_dir)!r} has no {TOKENS_FOLDER}/*.npz to play back"
            )
        self._cache: OrderedDict[str, RecordedTokens] = OrderedDict()
        self._by_prompt: dict[bytes, list[str]] | None = None

    @property
    def name(self) -> str:
        """Return `scripted:` and the run directory."""
        return f"scripted:{self._run_dir}"

    @property
    def end_ids(self) -> tuple[int, ...]:
        """None: a recorded turn ends where it ended."""
        return ()

    def continuation(self, request: GenerationRequest) -> Continuation:
        """Return what was generated next in the recorded episode."""
        key = episode_key(request.rid)
        if key in self._keys:
            return self._play(key, request)
        refusal: EngineRejected | None = None
        for candidate in self._with_same_prompt(request.input_ids):
            try:
                return self._play(candidate, request)
            except EngineRejected as error:
                refusal = refusal or error
        raise refusal or EngineRejected(
            f"request {request.rid}: {self._run_dir} recorded neither this episode nor one that "
            "began with this prompt"
        )

    def _play(self, key: str, request: GenerationRequest) -> Continuation:
        tokens = self._tokens(key)
        _check_prompt(tokens, request, where=str(self._run_dir / tokens_name(key)))
        start = len(request.input_ids) - len(tokens.prompts)
        rendered = np.flatnonzero(tokens.response_mask[start:] == 0)
        end = start + int(rendered[0]) if len(rendered) else len(tokens.responses)
        return Continuation(
            ids=tokens.responses[start:end].tolist(),
            logprobs=tokens.rollout_log_prob[start:end].tolist(),
            versions=tokens.weight_versions[start:end].tolist(),
        )

    # --- finding ------------------------------------------------------------------------------

    def _tokens(self, key: str) -> RecordedTokens:
        if key not in self._cache:
            self._cache[key] = read_tokens(self._run_dir / tokens_name(key))
            if len(self._cache) > _CACHED_EPISODES:
                self._cache.popitem(last=False)
        self._cache.move_to_end(key)
        return self._cache[key]

    def _with_same_prompt(self, ids: NDArray[np.int32]) -> Iterator[str]:
        if self._by_prompt is None:
            self._by_prompt = {}
            for key in self._keys:
                prompt = self._tokens(key).prompts.astype(np.int32).tobytes()
                self._by_prompt.setdefault(prompt, []).append(key)
        asked = ids.astype(np.int32).tobytes()
        for prompt, keys in self._by_prompt.items():
            if asked.startswith(prompt):
                yield from keys


def _check_prompt(tokens: RecordedTokens, request: GenerationRequest, *, where: str) -> None:
    """Refuse what is not a beginning of the record with a generated id next."""
    recorded = np.concatenate([tokens.prompts, tokens.responses])
    asked = request.input_ids
    shared = min(len(recorded), len(asked))
    differ = np.flatnonzero(recorded[:shared] != asked[:shared])
    if len(differ):
        at = int(differ[0])
        raise EngineRejected(
            f"request {request.rid} is not what {where} recorded: at position {at} the prompt has "
            f"id {int(asked[at])}, the record {int(recorded[at])}"
        )
    start = len(asked) - len(tokens.prompts)
    if not 0 <= start < len(tokens.responses) or not tokens.response_mask[start]:
        raise EngineRejected(
            f"request {request.rid} is not what {where} recorded: nothing was generated at "
            f"position {len(asked)} of its {len(recorded)} tokens"
        )
