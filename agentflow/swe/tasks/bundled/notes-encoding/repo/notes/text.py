"""Text for lists of notes."""


def preview(text, max_bytes):
    """The longest start of `text` that is at most `max_bytes` long in UTF-8."""
    return text.encode("utf-8")[:max_bytes].decode("utf-8")
