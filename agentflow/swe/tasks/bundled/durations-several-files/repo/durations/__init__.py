"""Reads and prints durations such as `1d 2h`."""

from durations.cli import build_parser
from durations.formatting import format_seconds
from durations.parsing import parse
from durations.units import UnknownUnit

__all__ = ["UnknownUnit", "build_parser", "format_seconds", "parse"]
