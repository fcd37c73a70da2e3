"""A provider's own section of a flow's configuration, checked when the provider is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from agentflow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

ModelT = TypeVar("ModelT", bound=BaseModel)


def parse_section(model: type[ModelT], section: Mapping[str, Any], *, kind: str) -> ModelT:
    """Make `model` of `section`; `kind` opens the message.

    Raises ConfigError that names every wrong key with its value.
    """
    try:
        return model.model_validate(dict(section))
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, one['loc']))}: {one['msg']} (got {one['input']!r:.200})"
            for one in error.errors(include_url=False)
        )
        raise ConfigError(f"{kind}: {wrong}") from error
