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
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

from tokenizers import Tokenizer as _Backend

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from tokenizers import AddedToken

_Span: TypeAlias = tuple[int, int]
"""Start and end in a text."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of rendered text and where it comes from."""

    text: str
    trusted: bool
    """True for the template's own text, in which special tokens are meant."""


class FastTokenizer:
    """The `tokenizers` library over one model's vocabulary. Immutable, safe between threads."""

    def __init__(self, tokenizer_json: str) -> None:
        """Take the text of a `tokenizer.json`; raises ValueError when it is not one."""
        self._backend = _load(tokenizer_json)
        added: dict[int, AddedToken] = self._backend.get_added_tokens_decoder()
        self._specials = {t.content: (i, t) for i, t in added.items() if t.special}
        self._finder = _Finder(self._specials)
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
        if not any(self._touched(text, pieces)):
            return self.encode(text)
        return self._encode_split(text, pieces)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens left out; bytes that are no UTF-8 become U+FFFD."""
        text: str = self._backend.decode(ids, skip_special_tokens=True)
        return text

    @cached_property
    def _plain(self) -> _Backend:
        """A copy that spells special tokens; made when first needed, it is as big as the first."""
        backend = _load(self._backend.to_str())
        backend.encode_special_tokens = True
        return backend

    # --- special tokens in untrusted text -----------------------------------------------------

    def _touched(self, text: str, pieces: Sequence[Piece]) -> Iterator[bool]:
        """Say of each special token in the joined text whether untrusted text is part of it."""
        spans = _trusted_spans(pieces)
        found = self._finder.search(text, 0)
        while found is not None:
            yield not _inside(found, spans)
            found = self._finder.search(text, found[1])

    def _encode_split(self, text: str, pieces: Sequence[Piece]) -> list[int]:
        """Cut at the trusted special tokens and encode what lies between them as plain text."""
        spans = _trusted_spans(pieces)
        ids: list[int] = []
        start = 0
        strip_left = False
        for first, end in self._trusted_specials(text, spans):
            id_, token = self._specials[text[first:end]]
            ids += self._between(text[start:first], left=strip_left, right=token.lstrip)
            ids.append(id_)
            start, strip_left = end, token.rstrip
        return ids + self._between(text[start:], left=strip_left, right=False)

    def _trusted_specials(self, text: str, spans: Sequence[_Span]) -> Iterator[_Span]:
        found = self._finder.search(text, 0)
        while found is not None:
            trusted = _inside(found, spans)
            if trusted:
                yield found
            # Letters of an untrusted match may begin a trusted token: go on right behind its first.
            found = self._finder.search(text, found[1] if trusted else found[0] + 1)

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


class _Finder:
    """Finds the leftmost special token, of several the longest, as the library does.

    By first letter and length rather than by one alternation: models with thousands of reserved
    tokens would make that slow on text with many `<`.
    """

    def __init__(self, tokens: Collection[str]) -> None:
        self._tokens = frozenset(tokens)
        self._lengths = sorted({len(token) for token in tokens}, reverse=True)
        firsts = "".join(re.escape(first) for first in sorted({token[0] for token in tokens}))
        self._first = re.compile(f"[{firsts}]" if firsts else r"(?!)")

    def search(self, text: str, position: int) -> _Span | None:
        for match in self._first.finditer(text, position):
            start = match.start()
            for length in self._lengths:
                token = text[start : start + length]  # shorter at the text's end
                if token in self._tokens:
                    return start, start + len(token)
        return None


def _trusted_spans(pieces: Sequence[Piece]) -> list[_Span]:
    """Give the stretches of the joined text that trusted neighbours form together."""
    ends = list(accumulate(len(piece.text) for piece in pieces))
    spans: list[_Span] = []
    for piece, end in zip(pieces, ends, strict=True):
        start = end - len(piece.text)
        if not piece.trusted or not piece.text:
            continue
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans


def _inside(found: _Span, spans: Sequence[_Span]) -> bool:
    return any(start <= found[0] and found[1] <= end for start, end in spans)
