"""ModelFolder: what a model's folder says about text and chat, read once and checked.

Reads `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja` and `generation_config.json`,
as Hugging Face writes them; knows no weights. Every defect is one ConfigError that names the file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agentflow.engine.tokenizer import FastTokenizer
from agentflow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

BUNDLED_FOLDER: Final = Path(__file__).parent / "tokenizer_data"
"""Holds the small ChatML tokenizer that ships with agentflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A model's tokenizer and chat settings."""

    name: str
    """For messages: the folder's path, or `bundled`."""
    tokenizer: FastTokenizer
    chat_template: str
    """Jinja source."""
    special_tokens: Mapping[str, str]
    """`bos_token`, `eos_token`, … as the template may name them."""
    end_ids: tuple[int, ...]
    """Ids at which the model's own configuration says that generation ends."""


def bundled_model_folder() -> ModelFolder:
    """Load the small ChatML tokenizer that ships with agentflow."""
    return replace(load_model_folder(BUNDLED_FOLDER), name="bundled")


def load_model_folder(folder: Path, *, chat_template: Path | None = None) -> ModelFolder:
    """Read a model's folder; `chat_template` is a Jinja file to use instead of the model's own.

    Raises ConfigError for a missing folder or file, broken JSON, or a model without a template.
    """
    if not folder.is_dir():
        raise ConfigError(f"tokenizer folder {str(folder)!r} does not exist or is no folder")
    tokenizer = _read_tokenizer(folder / "tokenizer.json")
    config = _read_json(folder / "tokenizer_config.json")
    special_tokens = _special_tokens(config)
    return ModelFolder(
        name=str(folder),
        tokenizer=tokenizer,
        chat_template=_chat_template(folder, config, chat_template),
        special_tokens=special_tokens,
        end_ids=_end_ids(folder, tokenizer, special_tokens),
    )


def _read_tokenizer(path: Path) -> FastTokenizer:
    text = _read_text(path)
    if text is None:
        raise ConfigError(
            f"{path} does not exist; a model folder needs tokenizer.json: save it with "
            "transformers' `AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)`"
        )
    try:
        return FastTokenizer(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def _chat_template(folder: Path, config: Mapping[str, Any], override: Path | None) -> str:
    if override is not None:
        text = _read_text(override)
        if text is None:
            raise ConfigError(f"chat template {str(override)!r} does not exist")
        return text
    text = _read_text(folder / "chat_template.jinja")
    if text is not None:
        return text
    template = _named_template(config.get("chat_template"))
    if template is None:
        raise ConfigError(
            f"{folder} has no chat template: neither chat_template.jinja nor `chat_template` in "
            "tokenizer_config.json; a base model has none, so use its instruct version or put the "
            "Jinja source into chat_template.jinja"
        )
    return template


def _named_template(value: object) -> str | None:
    """Give the template out of a string, or the `default` one out of a list of named ones."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return None
    named = {e.get("name"): e.get("template") for e in value if isinstance(e, dict)}
    default = named.get("default")
    return default if isinstance(default, str) else None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for key, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(text, str):
            tokens[key] = text
    return tokens


def _end_ids(
    folder: Path, tokenizer: FastTokenizer, special_tokens: Mapping[str, str]
) -> tuple[int, ...]:
    path = folder / "generation_config.json"
    value = _read_json(path).get("eos_token_id")
    if value is None:
        eos = tokenizer.token_id(special_tokens.get("eos_token", ""))
        return () if eos is None else (eos,)
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and 0 <= i < tokenizer.vocab_size for i in ids):
        raise ConfigError(
            f"{path}: eos_token_id {value!r} must be ids below the vocabulary's "
            f"{tokenizer.vocab_size}"
        )
    return tuple(ids)


def _read_json(path: Path) -> dict[str, Any]:
    text = _read_text(path)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value


def _read_text(path: Path) -> str | None:
    """Return the file's text, or None when there is no such file."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
