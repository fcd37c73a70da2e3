import pytest

from notes import Note, load_note, preview, save_note


def test_byte_order_mark_is_not_part_of_the_title(tmp_path):
    file = tmp_path / "note.txt"
    file.write_bytes(b"\xef\xbb\xbfGr\xc3\xbc\xc3\x9fe\r\nText")
    note = load_note(file)
    assert note.title == "Gr\u00fc\u00dfe"
    assert note.text.endswith("\r\nText")


@pytest.mark.parametrize(
    "size, shown", [(2, "na"), (3, "na"), (4, "na\u00ef"), (6, "na\u00efve"), (99, "na\u00efve"), (0, "")]
)
def test_preview(size, shown):
    assert preview("na\u00efve", size) == shown


def test_preview_of_long_characters():
    assert preview("\U0001f600\U0001f600", 7) == "\U0001f600"


def test_notes_are_utf_8_on_disk(tmp_path):
    file = tmp_path / "note.txt"
    save_note(file, Note("\u4f60\u597d\r\n\u20ac"))
    assert file.read_bytes() == "\u4f60\u597d\r\n\u20ac".encode()


def test_plain_round_trip(tmp_path):
    file = tmp_path / "note.txt"
    save_note(file, Note("Title\nbody"))
    assert load_note(file) == Note("Title\nbody")
