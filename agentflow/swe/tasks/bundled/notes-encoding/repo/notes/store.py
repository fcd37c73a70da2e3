"""Notes in files."""

from pathlib import Path

from notes.note import Note


def load_note(path):
    """Read the note in `path`; line ends are kept."""
    return Note(Path(path).read_bytes().decode("utf-8"))


def save_note(path, note):
    """Write `note` to `path`."""
    with open(path, "w", encoding="latin-1", errors="replace") as file:
        file.write(note.text)
