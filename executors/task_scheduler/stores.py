"""Stores: plain data with arrays, to a file and back. `.pt` through torch, or JSON without it.

`.pt` files hold tensors and primitive containers alone, so that `torch.load(weights_only=True)`
reads them. Files are replaced by rename: a reader sees the old or the new one, never a part.
"""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import orjson

from agentflow.errors import ConfigError
from executors.runs.files import write_atomic, writing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_ARRAY = "__array__"


class Store(Protocol):
    """Writes and reads plain data."""

    suffix: str
    """Of its files' names."""

    def save(self, path: Path, value: Any) -> None:
        """Replace `path`. Raises OutputError."""
        ...

    def load(self, path: Path) -> Any:
        """Read what `save` wrote. Raises ConfigError naming the file."""
        ...


class TorchStore:
    """`.pt` files, which trainers read."""

    suffix = ".pt"

    def __init__(self) -> None:
        """Raises ConfigError where torch is not installed."""
        try:
            import torch  # noqa: PLC0415  # heavy, and only for these files
        except ImportError as error:
            raise ConfigError(
                "trajectory files (.pt) need torch: pip install 'agentflow-rl[torch]'"
            ) from error
        self._torch = torch

    def save(self, path: Path, value: Any) -> None:
        """Write arrays as tensors."""
        buffer = io.BytesIO()
        self._torch.save(_mapped(value, np.ndarray, self._tensor), buffer)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, buffer.getvalue())

    def load(self, path: Path) -> Any:
        """Read without running any code from the file."""
        try:
            value = self._torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, ValueError, EOFError, _unpickling_error()) as error:
            raise ConfigError(f"{path}: cannot be read as a .pt file: {error}") from error
        return _mapped(value, self._torch.Tensor, lambda tensor: tensor.numpy())

    def _tensor(self, array: Any) -> Any:
        return self._torch.from_numpy(np.array(array))


def _unpickling_error() -> type[Exception]:
    from pickle import UnpicklingError  # noqa: PLC0415  # the error's type alone

    return UnpicklingError


class JsonStore:
    """`.json` files with arrays in base64, for machines without torch."""

    suffix = ".json"

    def save(self, path: Path, value: Any) -> None:
        """Write everything as one JSON document."""
        option = orjson.OPT_NON_STR_KEYS
        data = orjson.dumps(_mapped(value, np.ndarray, _packed), option=option)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data)

    def load(self, path: Path) -> Any:
        """Read it back."""
        try:
            value = orjson.loads(path.read_bytes())
        except (OSError, orjson.JSONDecodeError) as error:
            raise ConfigError(f"{path}: cannot be read as JSON: {error}") from error
        return _unpacked(value)


def _mapped(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(item, kind, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_mapped(item, kind, change) for item in value]
    return value


def _packed(array: Any) -> dict[str, Any]:
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {_ARRAY: [str(array.dtype), list(array.shape), data]}


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {_ARRAY}:
            kind, shape, data = value[_ARRAY]
            flat = np.frombuffer(base64.b64decode(data), np.dtype(kind))
            return flat.reshape(shape).copy()
        return {key: _unpacked(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unpacked(item) for item in value]
    return value
