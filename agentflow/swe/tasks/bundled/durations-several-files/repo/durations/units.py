"""The table of units."""

SECONDS = {
    "s": 1,
    "m": 60,
    "h": 3600,
    "d": 86400,
}

NAMES = {
    "second": "s",
    "minute": "m",
    "hour": "h",
    "day": "d",
}


class UnknownUnit(ValueError):
    """No unit is called that."""


def canonical(name):
    """The short form of a unit's name, singular or plural."""
    short = NAMES.get(name.removesuffix("s"), name) if len(name) > 1 else name
    if short not in SECONDS:
        raise UnknownUnit(name)
    return short
