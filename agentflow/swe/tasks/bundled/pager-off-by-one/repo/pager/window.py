"""The page numbers to draw under a list."""


def window(pager, current, around=2):
    """Numbers of the pages at most `around` away from `current`."""
    first = max(current - around, 1)
    last = min(current + around, pager.pages)
    return list(range(first, last + 1))
