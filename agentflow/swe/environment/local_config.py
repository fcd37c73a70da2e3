"""The local environment's section of the configuration."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path  # noqa: TC003  # pydantic reads the annotation at run time
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(gt=0)]


class SandboxChoice(StrEnum):
    """How commands are kept in."""

    AUTO = "auto"
    """bubblewrap where it works, otherwise none, with a warning."""
    BUBBLEWRAP = "bubblewrap"
    """bubblewrap, or no environment starts."""
    NONE = "none"
    """A plain subprocess in a directory of its own: no protection at all."""


class LocalEnvConfig(BaseModel):
    """What `LocalEnvBuilder` is built from; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "local"
    """Begins the name of every environment."""
    sandbox: SandboxChoice = SandboxChoice.AUTO
    timeout_s: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """Time limit of a command that comes without one."""
    output_head_bytes: int = Field(default=512 * 1024, ge=0)
    """How much of the beginning of an output is kept."""
    output_tail_bytes: int = Field(default=512 * 1024, ge=0)
    """How much of its end."""
    scratch_dir: Path | None = None
    """Where environments live; None: `agentflow-UID` in the system's temporary directory."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables of every command."""
    network: bool = False
    """Whether a sandboxed command sees the network."""
    memory_limit_bytes: PositiveInt | None = None
    """Address space of each single process (RLIMIT_AS), not of the whole command; in a sandbox also
    the size of /dev/shm, if bubblewrap is 0.7 or newer."""
    pids_limit: PositiveInt | None = None
    """Processes of one command; needs bubblewrap and a user other than root."""
    read_only_paths: tuple[Path, ...] = ()
    """What a sandbox shows besides the system's folders and this Python's."""
    hidden_paths: tuple[Path, ...] = ()
    """Folders below those that it shows as empty."""
