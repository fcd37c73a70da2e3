import pytest

from durations import build_parser, format_seconds


@pytest.mark.parametrize("seconds, text", [(8 * 86400, "1w 1d"), (14 * 86400, "2w")])
def test_weeks_are_printed(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize("seconds, text", [(90, "1m 30s"), (0, "0s"), (93600, "1d 2h")])
def test_smaller_units_are_printed(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize("unit", ["s", "d", "w"])
def test_unit_is_a_choice(unit):
    assert build_parser().parse_args(["1d", "--unit", unit]).unit == unit
