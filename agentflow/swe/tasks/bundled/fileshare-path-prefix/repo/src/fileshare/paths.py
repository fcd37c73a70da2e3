"""What a client's path means on disk."""

import os


class OutsideShare(PermissionError):
    """The path leads out of the share."""


def resolve(root, path):
    """The file that a client means by `path`."""
    full = os.path.normpath(os.path.join(root, path))
    if not full.startswith(root):
        raise OutsideShare(path)
    return full
