"""From text to seconds."""

import re

from durations.units import SECONDS, canonical

_PART = re.compile(r"(\d+)\s*([a-z]+)")


def parse(text):
    """The seconds in a text such as `1d 2h` or `3 minutes`."""
    text = text.strip().lower()
    total = 0
    at = 0
    for match in _PART.finditer(text):
        if text[at : match.start()].strip(" ,"):
            break
        total += int(match[1]) * SECONDS[canonical(match[2])]
        at = match.end()
    if not text or text[at:].strip():
        raise ValueError(f"not a duration: {text!r}")
    return total
