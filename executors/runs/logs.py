"""The log file of a run."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from executors.runs.files import writing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def says_something(record: logging.LogRecord) -> bool:
    """Leave out what stamina says of every retry: it names nothing, and who retries tells of it."""
    return record.name != "stamina"


class _QuietFileHandler(logging.FileHandler):
    """A log that cannot be written must not drown the error that the run reports anyway."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the base's name
        """Do nothing."""


@contextlib.contextmanager
def logging_to(path: Path, *, level: int = logging.INFO) -> Iterator[None]:
    """Append everything that is logged to `path` while the context lasts.

    The file is opened at once, so that a folder that vanishes later fails no logging call. Raises
    OutputError.
    """
    root = logging.getLogger()
    with writing(path):
        handler = _QuietFileHandler(path, encoding="utf-8")
    handler.setLevel(level)
    handler.addFilter(says_something)
    handler.setFormatter(logging.Formatter(_FORMAT))
    before = root.level
    root.addHandler(handler)
    root.setLevel(min(before, level))
    try:
        yield
    finally:
        root.setLevel(before)
        root.removeHandler(handler)
        with contextlib.suppress(OSError):
            handler.close()
