"""Work in another thread keeps its order, and its errors reach the caller, the earliest first."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from mop_backend.frames import PeerGone

from madlib_mop.driver.columns.threads import computed_ahead, in_background
from madlib_mop.errors import Cancelled


@pytest.fixture
def thread():
    with ThreadPoolExecutor(1) as thread:
        yield thread


def test_results_come_in_the_order_of_the_items_from_another_thread(thread):
    threads = set()

    def squared(number):
        threads.add(threading.get_ident())
        return number**2

    assert list(computed_ahead(thread, squared, range(5))) == [0, 1, 4, 9, 16]
    assert list(computed_ahead(thread, squared, [])) == []
    assert len(threads) == 1 and threading.get_ident() not in threads


def test_the_next_result_is_computed_while_one_is_used_and_no_more(thread):
    begun = threading.Semaphore(0)
    items = iter(range(5))
    results = computed_ahead(thread, lambda number: begun.release(), items)
    next(results)
    assert begun.acquire(timeout=10) and begun.acquire(timeout=10)
    assert next(items) == 2
    results.close()


def test_an_error_of_a_result_is_raised_where_it_is_due(thread):
    results = computed_ahead(thread, lambda number: 6 // number, [3, 0, 2])
    assert next(results) == 2
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_calls_in_the_background_come_one_after_the_other_and_are_all_made():
    running, seen = threading.Lock(), []

    def call(item):
        assert running.acquire(blocking=False)
        seen.append(item)
        running.release()

    with in_background(call) as start:
        for item in range(100):
            start(item)
    assert seen == list(range(100))


def test_an_error_in_the_background_comes_before_a_later_one_of_the_body():
    with pytest.raises(ZeroDivisionError), in_background(lambda number: 6 // number) as start:
        start(0)
        raise KeyError("of a later batch")
    with pytest.raises(ZeroDivisionError), in_background(lambda number: 6 // number) as start:
        start(0)
        start(1)
    with pytest.raises(KeyError), in_background(lambda number: 6 // number) as start:
        start(1)
        raise KeyError("the only one")


@pytest.mark.parametrize("stop", [Cancelled("stop"), PeerGone("gone")])
def test_an_error_in_the_background_does_not_hide_a_stop(stop):
    with pytest.raises(type(stop)), in_background(lambda number: 6 // number) as start:
        start(0)
        raise stop
