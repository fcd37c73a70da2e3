"""Remembers the results of slow functions."""

from lookup.decorator import cached
from lookup.store import Store

__all__ = ["Store", "cached"]
