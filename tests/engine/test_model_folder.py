"""A model's folder is read as Hugging Face writes it, and every defect is one clear error."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from chat_shapes import QWEN2, make_folder

from agentflow.engine.model_folder import bundled_model_folder, load_model_folder
from agentflow.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def test_reads_template_and_special_tokens(tmp_path: Path) -> None:
    """Plain strings and `{content: …}` objects are both special tokens."""
    folder = load_model_folder(make_folder(tmp_path, QWEN2))
    assert folder.chat_template == QWEN2
    assert folder.special_tokens == {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    assert folder.end_ids == (folder.tokenizer.token_id("<|im_end|>"),)
    assert folder.name == str(tmp_path)


def test_the_default_of_several_templates_counts(tmp_path: Path) -> None:
    """A list of named templates has one called `default`."""
    make_folder(tmp_path, None)
    config = {"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default",
              "template": "D"}]}  # fmt: skip
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    assert load_model_folder(tmp_path).chat_template == "D"


def test_a_template_file_goes_before_the_configuration(tmp_path: Path) -> None:
    """chat_template.jinja is the newer place; a given file goes before both."""
    make_folder(tmp_path, QWEN2)
    (tmp_path / "chat_template.jinja").write_text("file", encoding="utf-8")
    assert load_model_folder(tmp_path).chat_template == "file"
    own = tmp_path / "own.jinja"
    own.write_text("own", encoding="utf-8")
    assert load_model_folder(tmp_path, chat_template=own).chat_template == "own"


@pytest.mark.parametrize(("value", "ids"), [(5, (5,)), ([5, 6], (5, 6))])
def test_generation_config_names_the_end_ids(
    tmp_path: Path, value: object, ids: tuple[int, ...]
) -> None:
    """One id or several."""
    make_folder(tmp_path, QWEN2)
    text = json.dumps({"eos_token_id": value})
    (tmp_path / "generation_config.json").write_text(text, encoding="utf-8")
    assert load_model_folder(tmp_path).end_ids == ids


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """A path that is not there, or is a file, is refused."""
    with pytest.raises(ConfigError, match="nowhere"):
        load_model_folder(tmp_path / "nowhere")


def test_a_missing_tokenizer_says_how_to_get_one(tmp_path: Path) -> None:
    """Older models have no tokenizer.json."""
    with pytest.raises(ConfigError, match=r"tokenizer\.json.*save_pretrained"):
        load_model_folder(tmp_path)


def test_a_base_model_without_template_is_refused(tmp_path: Path) -> None:
    """The error says what to do."""
    make_folder(tmp_path, None)
    with pytest.raises(ConfigError, match=r"no chat template.*chat_template\.jinja"):
        load_model_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tokenizer.json", "{", r"tokenizer\.json: not a tokenizer"),
        ("tokenizer_config.json", '{"a": 1,\n]', r"tokenizer_config\.json is not JSON.*line 2"),
        ("tokenizer_config.json", "[]", r"must hold a JSON object, not list"),
        ("generation_config.json", '{"eos_token_id": 10000000}', r"eos_token_id 10000000 must be"),
        ("generation_config.json", '{"eos_token_id": "</s>"}', r"eos_token_id '</s>' must be"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    """The error has the file and what is wrong in it."""
    make_folder(tmp_path, QWEN2)
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_model_folder(tmp_path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    """A template file in another encoding is named."""
    make_folder(tmp_path, QWEN2)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"chat_template\.jinja cannot be read"):
        load_model_folder(tmp_path)


def test_a_given_template_must_exist(tmp_path: Path) -> None:
    """A path mistyped on the command line is named."""
    make_folder(tmp_path, QWEN2)
    with pytest.raises(ConfigError, match=r"mine\.jinja' does not exist"):
        load_model_folder(tmp_path, chat_template=tmp_path / "mine.jinja")


def test_the_bundled_folder_is_complete() -> None:
    """It needs no file from elsewhere."""
    folder = bundled_model_folder()
    assert folder.name == "bundled"
    assert folder.end_ids == (folder.tokenizer.special_tokens["<|im_end|>"],)
