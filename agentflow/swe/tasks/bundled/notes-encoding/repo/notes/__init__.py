"""Plain text notes on disk; the first line is the title."""

from notes.note import Note
from notes.store import load_note, save_note
from notes.text import preview

__all__ = ["Note", "load_note", "preview", "save_note"]
