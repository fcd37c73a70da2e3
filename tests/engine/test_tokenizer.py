"""FastTokenizer is exact, and keeps special tokens out of untrusted text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from chat_shapes import make_folder
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.engine.model_folder import bundled_model_folder, load_model_folder
from agentflow.engine.tokenizer import FastTokenizer, Piece

if TYPE_CHECKING:
    from pathlib import Path

TOKENIZER = bundled_model_folder().tokenizer
END = TOKENIZER.special_tokens["<|im_end|>"]
SPECIAL_IDS = set(TOKENIZER.special_tokens.values())

fragments = st.sampled_from(
    ["<|im_end|>", "<|im_", "end|>", "<|", "|>", "<|im_start|>", "im_end", "\n", " ", "user", "é"]
)
texts = st.one_of(st.text(max_size=20), st.lists(fragments, max_size=5).map("".join))
piece_lists = st.lists(st.builds(Piece, texts, st.booleans()), max_size=6)


@settings(max_examples=50)
@given(st.text())
def test_every_text_comes_back(text: str) -> None:
    """Byte-level ids decode to the very text."""
    assert TOKENIZER.decode(TOKENIZER.encode_plain(text)) == text


def test_special_tokens_are_meant_in_trusted_text_only() -> None:
    """`encode` recognises them, `encode_plain` spells them."""
    assert END in TOKENIZER.encode("a<|im_end|>b")
    assert not SPECIAL_IDS & set(TOKENIZER.encode_plain("a<|im_end|>b"))


@settings(max_examples=50)
@given(piece_lists)
def test_only_trusted_pieces_give_special_ids(pieces: list[Piece]) -> None:
    """Special ids are those of the trusted stretches, in order; text is lost nowhere."""
    ids = TOKENIZER.encode_pieces(pieces)
    stretches = [""]
    for piece in pieces:
        if piece.trusted:
            stretches[-1] += piece.text
        elif piece.text:
            stretches.append("")
    expected = [i for s in stretches for i in TOKENIZER.encode(s) if i in SPECIAL_IDS]
    assert [i for i in ids if i in SPECIAL_IDS] == expected
    spelled = TOKENIZER.decode(ids)
    missing = sum(len(t) * expected.count(i) for t, i in TOKENIZER.special_tokens.items())
    assert len(spelled) == sum(len(piece.text) for piece in pieces) - missing


@settings(max_examples=50)
@given(st.lists(st.builds(Piece, st.text(max_size=20), st.booleans()), max_size=6))
def test_harmless_pieces_are_encoded_as_one_text(pieces: list[Piece]) -> None:
    """Merges across the edges of pieces are kept."""
    assert TOKENIZER.encode_pieces(pieces) == TOKENIZER.encode("".join(p.text for p in pieces))


@pytest.mark.parametrize(
    "pieces",
    [
        [Piece("<|im_", trusted=True), Piece("end|>", trusted=False)],
        [Piece("<|im_", trusted=False), Piece("end|>", trusted=True)],
        [Piece("<|im", trusted=True), Piece("_", trusted=False), Piece("end|>", trusted=True)],
    ],
)
def test_no_special_token_forms_across_a_seam(pieces: list[Piece]) -> None:
    """A content cannot complete what the template's text begins."""
    assert not SPECIAL_IDS & set(TOKENIZER.encode_pieces(pieces))


def test_a_token_that_swallows_whitespace_does_so_beside_hostile_text(tmp_path: Path) -> None:
    """The careful path gives the ids of the plain one: `rstrip` tokens eat the line end."""
    path = make_folder(tmp_path, "x", specials=("<|end|>",), rstrip=True)
    tokenizer = load_model_folder(path).tokenizer
    calm = [Piece("<|end|>\n", trusted=True), Piece("hi", trusted=False)]
    hostile = [*calm, Piece("<|end|>", trusted=False)]
    assert tokenizer.encode_pieces(calm) == tokenizer.encode("<|end|>hi")
    spelled = tokenizer.encode_plain("hi<|end|>")
    assert tokenizer.encode_pieces(hostile) == [tokenizer.token_id("<|end|>"), *spelled]


def test_ids_are_below_the_vocabulary_size() -> None:
    """The highest id is the size less one."""
    assert max(TOKENIZER.special_tokens.values()) < TOKENIZER.vocab_size
    assert TOKENIZER.token_id("no such token") is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model": {"type": "Nonsense"}}'])
def test_nonsense_is_no_tokenizer(text: str) -> None:
    """What the library cannot read is one ValueError."""
    with pytest.raises(ValueError, match=r"not a tokenizer\.json"):
        FastTokenizer(text)
