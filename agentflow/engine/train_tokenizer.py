"""Train the bundled tokenizer: `python -m agentflow.engine.train_tokenizer [--out DIR]`.

A byte-level BPE over the text that every Python carries with it: the sources and docstrings of the
standard library's top-level modules and of a few of its packages, and the language reference in
`pydoc_data`. It so knows Python, English and shell-like words, needs no download, and represents
every byte sequence exactly. Files are read in sorted order and ties between merges are broken by
id, so that two runs of one Python version write the same bytes; the committed files were made by
CPython 3.11.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from agentflow.engine.model_folder import BUNDLED_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

VOCAB_SIZE: Final = 6144
"""A few thousand merges halve a prompt's length against bytes and stay under 400 KB on disk."""

END_OF_TEXT: Final = "<|endoftext|>"
START_OF_TURN: Final = "<|im_start|>"
END_OF_TURN: Final = "<|im_end|>"

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML."""

_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen2's words: line ends stay with what they end, digits stand alone."""

_PACKAGES: Final = ("asyncio", "collections", "email", "http", "json", "unittest", "pydoc_data")


def stdlib_files() -> list[Path]:
    """Sources that the bundled tokenizer is trained on, in a fixed order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(root.glob("*.py"))
    for package in _PACKAGES:
        files += sorted((root / package).glob("*.py"))
    return files


def train(files: Iterable[Path], *, vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Train a byte-level BPE with the three ChatML specials as its first ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    specials = [
        AddedToken(text, special=True, normalized=False)
        for text in (END_OF_TEXT, START_OF_TURN, END_OF_TURN)
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(files), trainer)
    return tokenizer


def write_folder(tokenizer: Tokenizer, folder: Path) -> None:
    """Write a model folder's tokenizer files: what `load_model_folder` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str() + "\n", encoding="utf-8")
    end = tokenizer.token_to_id(END_OF_TURN)
    _write_json(folder / "generation_config.json", {"eos_token_id": [end]})
    _write_json(
        folder / "tokenizer_config.json",
        {
            "bos_token": None,
            "chat_template": CHAT_TEMPLATE,
            "eos_token": END_OF_TURN,
            "pad_token": END_OF_TEXT,
        },
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Train on the standard library and write the folder."""
    parser = argparse.ArgumentParser(description="Train the bundled tokenizer.")
    parser.add_argument("--out", type=Path, default=BUNDLED_FOLDER, help="folder to write")
    write_folder(train(stdlib_files()), parser.parse_args(argv).out)


def _texts(files: Iterable[Path]) -> Iterator[str]:
    for file in files:
        yield file.read_text(encoding="utf-8", errors="replace")


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
