import pytest

from lookup import Store, cached


def test_keyword_arguments_count():
    @cached
    def rates(currency, day):
        return (currency, day)

    assert rates("EUR", day=1) == ("EUR", 1)
    assert rates("EUR", day=2) == ("EUR", 2)


def test_types_count():
    @cached
    def name(value):
        return type(value).__name__

    assert [name(1), name(1.0), name(True)] == ["int", "float", "bool"]


def test_callers_cannot_change_what_is_remembered():
    @cached
    def numbers():
        return [3, 1, 2]

    numbers().sort()
    assert numbers() == [3, 1, 2]


def test_functions_of_one_name_are_apart():
    def make(value):
        @cached
        def same():
            return value

        return same

    one, two = make(1), make(2)
    assert (one(), two()) == (1, 2)
    one.cache_clear()
    assert two() == 2


def test_a_call_is_made_once():
    calls = []

    @cached
    def once(x):
        calls.append(x)
        return x

    assert [once(5), once(5)] == [5, 5]
    assert calls == [5]
    once.cache_clear()
    once(5)
    assert calls == [5, 5]


def test_failures_are_not_remembered():
    outcomes = iter([ValueError("no"), None])

    @cached
    def flaky():
        outcome = next(outcomes)
        if outcome:
            raise outcome
        return "done"

    with pytest.raises(ValueError):
        flaky()
    assert flaky() == "done"


def test_store_forgets_the_oldest():
    store = Store(max_entries=2)
    for key in "abc":
        store.write((key,), key)
    assert ("a",) not in store and len(store) == 2
