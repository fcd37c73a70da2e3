"""From seconds to text."""

from durations.units import SECONDS

_ORDER = ("d", "h", "m", "s")


def format_seconds(seconds):
    """The duration with the largest units first; units that are nought are left out."""
    parts = []
    for unit in _ORDER:
        count, seconds = divmod(seconds, SECONDS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0s"
