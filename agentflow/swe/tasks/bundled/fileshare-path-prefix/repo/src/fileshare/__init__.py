"""Serves the files under one folder."""

from fileshare.paths import OutsideShare
from fileshare.share import Share

__all__ = ["OutsideShare", "Share"]
