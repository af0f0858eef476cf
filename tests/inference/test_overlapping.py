"""Items that are made ahead in a thread."""

import threading
import time

import pytest

from gmmseg.inference.overlapping import read_ahead


def test_items_come_in_order_and_are_made_ahead():
    made = []

    def items():
        for number in range(20):
            made.append(number)
            yield number

    seen = read_ahead(items(), 3)
    assert next(seen) == 0
    deadline = time.monotonic() + 5
    while len(made) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert 4 <= len(made) <= 5, "as many as fit, and one that waits"
    assert list(seen) == list(range(1, 20))


def test_an_error_comes_after_the_items_before_it():
    def items():
        yield 1
        raise KeyError("gone")

    seen = read_ahead(items(), 2)
    assert next(seen) == 1
    with pytest.raises(KeyError, match="gone"):
        next(seen)


def test_after_a_large_item_nothing_is_made_before_it_is_used():
    made = []

    def items():
        for number in range(4):
            made.append(number)
            yield number

    seen = read_ahead(items(), 4, lambda number: number == 1)
    assert [next(seen), next(seen)] == [0, 1]
    time.sleep(0.1)
    assert made == [0, 1]
    assert list(seen) == [2, 3]


def test_a_user_who_stops_ends_the_thread():
    before = threading.active_count()
    seen = read_ahead(iter(int, 1), 2)  # zeros without end
    next(seen)
    seen.close()
    assert threading.active_count() == before
