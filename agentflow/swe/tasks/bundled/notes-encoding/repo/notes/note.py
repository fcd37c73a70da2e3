"""Note: a title and a body."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Note:
    """The first line is the title."""

    text: str

    @property
    def title(self):
        return self.text.split("\n", 1)[0].rstrip("\r")
