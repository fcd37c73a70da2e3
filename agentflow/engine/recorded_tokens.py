"""RecordedTokens: an episode's tokens as a run directory keeps them: `tokens/<episode key>.npz`."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from agentflow.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from agentflow.types import RolloutSample

TOKENS_FOLDER: Final = "tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTokens:
    """One episode's tokens; the arrays of its npz file, which bear these names."""

    prompts: NDArray[np.int32]
    """Shape (p,): ids sent for the first generation."""
    responses: NDArray[np.int32]
    """Shape (r,): ids that came after."""
    response_mask: NDArray[np.int8]
    """Shape (r,): 1 where generated."""
    rollout_log_prob: NDArray[np.float32]
    """Shape (r,): nats."""
    weight_versions: NDArray[np.int32]
    """Shape (r,): -1 where not generated."""

    def __post_init__(self) -> None:
        for name in ("response_mask", "rollout_log_prob", "weight_versions"):
            found = len(getattr(self, name))
            if found != len(self.responses):
                raise ValueError(f"{name} has {found} entries, responses {len(self.responses)}")


_ARRAYS: Final = tuple(RecordedTokens.__dataclass_fields__)


def tokens_name(key: str) -> str:
    """Path inside a run directory of the tokens of the episode with this `EpisodeId.key`."""
    return f"{TOKENS_FOLDER}/{key}.npz"


def token_archive(sample: RolloutSample) -> bytes:
    """Give a sample's token arrays as an uncompressed .npz file."""
    buffer = io.BytesIO()
    np.savez(buffer, **{name: getattr(sample, name) for name in _ARRAYS})
    return buffer.getvalue()


def read_tokens(path: Path) -> RecordedTokens:
    """Read one episode's tokens. Raises ConfigError when the file is not what it should be."""
    try:
        # numpy leaves a file that it opened itself open when the archive is damaged.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return RecordedTokens(**{name: arrays[name] for name in _ARRAYS})
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"{path} is no record of an episode's tokens ({error}); it must be an npz file with "
            f"the arrays {', '.join(_ARRAYS)}"
        ) from None
