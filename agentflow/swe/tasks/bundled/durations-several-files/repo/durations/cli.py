"""The command line."""

import argparse

from durations.units import SECONDS


def build_parser():
    """The arguments of `durations`."""
    parser = argparse.ArgumentParser("durations")
    parser.add_argument("text")
    units = [unit for unit, seconds in SECONDS.items() if seconds <= 86400]
    parser.add_argument("--unit", choices=units, default="s")
    return parser
