"""Share: reads files for clients."""

from pathlib import Path

from fileshare.paths import resolve


class Share:
    """The files under `root`."""

    def __init__(self, root):
        self.root = str(root)

    def read(self, path):
        """The bytes of a file; raises OutsideShare, FileNotFoundError."""
        return Path(resolve(self.root, path)).read_bytes()
