"""FastTokenizer: text to ids and back by a model's own `tokenizer.json`.

Special tokens belong to the template and to the policy, never to text that comes from outside. A
file, a web page or a command's output may well contain the letters `<|im_end|>`; were they encoded
as the special token, the environment could end its own message and speak as the assistant. So a
rendered conversation is encoded from `Piece`s that say where each stretch of text comes from:

- a special token written inside a *trusted* piece (the template's) becomes its id;
- one inside, or reaching into, an untrusted piece (a message's content) is encoded as plain text.

The ids are otherwise those of encoding the joined text at once: merges across the edges of pieces
are kept, so that a conversation without such text is encoded exactly as the model's trainers did.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from tokenizers import Tokenizer as _Backend

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokenizers import AddedToken

_NOTHING: Final = re.compile(r"(?!)")


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of rendered text and where it comes from."""

    text: str
    trusted: bool
    """True for the template's own text, in which special tokens are meant."""


class FastTokenizer:
    """A `protocols.Tokenizer` over the `tokenizers` library. Immutable, safe between threads."""

    def __init__(self, tokenizer_json: str) -> None:
        """Take the text of a `tokenizer.json`; raises ValueError when it is not one."""
        self._backend = _load(tokenizer_json)
        self._plain = _load(tokenizer_json)
        self._plain.encode_special_tokens = True
        added: dict[int, AddedToken] = self._backend.get_added_tokens_decoder()
        self._specials = {t.content: (i, t) for i, t in added.items() if t.special}
        self._pattern = _any_of(list(self._specials))
        self._size = 1 + max(self._backend.get_vocab(with_added_tokens=True).values())

    @property
    def vocab_size(self) -> int:
        """Ids are below this."""
        return self._size

    @property
    def special_tokens(self) -> dict[str, int]:
        """Special tokens and their ids."""
        return {text: id_ for text, (id_, _) in self._specials.items()}

    def token_id(self, token: str) -> int | None:
        """Id of one token by its text; None when the vocabulary has no such token."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def encode(self, text: str) -> list[int]:
        """Ids of trusted `text`: special tokens written out in it are recognised."""
        return self._ids(self._backend, text)

    def encode_plain(self, text: str) -> list[int]:
        """Ids of untrusted `text`: no special token comes out of it."""
        return self._ids(self._plain, text)

    def encode_pieces(self, pieces: Sequence[Piece]) -> list[int]:
        """Ids of the joined pieces; special tokens only out of trusted ones."""
        text = "".join(piece.text for piece in pieces)
        if not any(self._touched(pieces)):
            return self.encode(text)
        return self._encode_split(text, pieces)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens left out; bytes that are no UTF-8 become U+FFFD."""
        text: str = self._backend.decode(ids, skip_special_tokens=True)
        return text

    # --- special tokens in untrusted text -----------------------------------------------------

    def _touched(self, pieces: Sequence[Piece]) -> Iterator[bool]:
        """Say of each special token in the joined text whether untrusted text is part of it."""
        text = "".join(piece.text for piece in pieces)
        spans = _trusted_spans(pieces)
        for match in self._pattern.finditer(text):
            yield not _inside(match, spans)

    def _encode_split(self, text: str, pieces: Sequence[Piece]) -> list[int]:
        """Cut at the trusted special tokens and encode what lies between them as plain text."""
        spans = _trusted_spans(pieces)
        ids: list[int] = []
        start = 0
        strip_left = False
        for match in self._trusted_specials(text, spans):
            id_, token = self._specials[match.group()]
            ids += self._between(text[start : match.start()], left=strip_left, right=token.lstrip)
            ids.append(id_)
            start, strip_left = match.end(), token.rstrip
        return ids + self._between(text[start:], left=strip_left, right=False)

    def _trusted_specials(self, text: str, spans: list[tuple[int, int]]) -> Iterator[re.Match[str]]:
        position = 0
        while match := self._pattern.search(text, position):
            trusted = _inside(match, spans)
            if trusted:
                yield match
            # Letters of an untrusted match may begin a trusted token: go on right behind its first.
            position = match.end() if trusted else match.start() + 1

    def _between(self, text: str, *, left: bool, right: bool) -> list[int]:
        """Encode plain text beside special tokens that swallow whitespace on that side."""
        text = text.lstrip() if left else text
        text = text.rstrip() if right else text
        return self.encode_plain(text) if text else []

    @staticmethod
    def _ids(backend: _Backend, text: str) -> list[int]:
        ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        return ids


def _load(tokenizer_json: str) -> _Backend:
    try:
        backend = _Backend.from_str(tokenizer_json)
    except Exception as error:  # noqa: BLE001  # the library raises bare Exception for bad input
        raise ValueError(f"not a tokenizer.json: {error}") from None
    backend.no_truncation()
    backend.no_padding()
    return backend


def _any_of(tokens: list[str]) -> re.Pattern[str]:
    """Match the leftmost special token, of several the longest, as the library does."""
    if not tokens:
        return _NOTHING
    return re.compile("|".join(re.escape(t) for t in sorted(tokens, key=len, reverse=True)))


def _trusted_spans(pieces: Sequence[Piece]) -> list[tuple[int, int]]:
    """Give the stretches of the joined text that trusted neighbours form together."""
    ends = list(accumulate(len(piece.text) for piece in pieces))
    spans: list[tuple[int, int]] = []
    for piece, end in zip(pieces, ends, strict=True):
        start = end - len(piece.text)
        if not piece.trusted or not piece.text:
            continue
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans


def _inside(match: re.Match[str], spans: list[tuple[int, int]]) -> bool:
    return any(start <= match.start() and match.end() <= end for start, end in spans)
