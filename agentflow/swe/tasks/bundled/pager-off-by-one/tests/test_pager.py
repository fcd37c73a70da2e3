import pytest

from pager import PageNotFound, Pager, window


@pytest.mark.parametrize("count, pages", [(30, 3), (31, 4), (29, 3), (1, 1), (10, 1), (11, 2)])
def test_number_of_pages(count, pages):
    assert Pager(range(count)).pages == pages


def test_the_last_full_page():
    page = Pager(range(30)).page(3)
    assert page.entries == list(range(20, 30))
    assert not page.has_next


def test_the_last_page_with_one_entry():
    pager = Pager(range(31))
    assert pager.page(3).has_next
    assert pager.page(4).entries == [30]


def test_window_reaches_the_last_page():
    assert window(Pager(range(16), per_page=5), current=3) == [1, 2, 3, 4]


def test_no_entries_are_one_empty_page():
    pager = Pager([])
    assert pager.pages == 1
    assert pager.page(1).entries == []


def test_pages_outside_are_not_found():
    pager = Pager(range(31))
    for number in (0, 5):
        with pytest.raises(PageNotFound):
            pager.page(number)


def test_per_page_must_be_positive():
    with pytest.raises(ValueError):
        Pager([], per_page=0)
