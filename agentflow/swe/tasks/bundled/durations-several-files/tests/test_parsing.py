import pytest

from durations import UnknownUnit, parse


@pytest.mark.parametrize("text", ["2w", "2 weeks", "1week 7 days"])
def test_weeks(text):
    assert parse(text) == 14 * 86400


@pytest.mark.parametrize(
    "text, seconds", [("1d 2h", 93600), ("3 minutes", 180), ("1h, 1s", 3601)]
)
def test_smaller_units(text, seconds):
    assert parse(text) == seconds


def test_unknown_unit():
    with pytest.raises(UnknownUnit):
        parse("3 fortnights")


@pytest.mark.parametrize("text", ["", "x", "1h ?", "? 1h"])
def test_no_duration(text):
    with pytest.raises(ValueError):
        parse(text)
