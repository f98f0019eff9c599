import threading

import pytest
from splade_rescale.threads import map_in_order, one_ahead


def counted(number, taken):
    for item in range(number):
        taken.append(item)
        yield item


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_come_in_the_order_of_the_items(threads):
    release = [threading.Event() for _ in range(50)]
    for event in release[::2]:
        event.set()

    def work(item):
        if item % 2 == 0 and item:
            release[item - 1].set()
        if threads > 1:
            release[item].wait(60)  # an odd item ends after the even one behind it
        return item * item

    assert list(map_in_order(work, range(49), threads)) == [item * item for item in range(49)]


def test_few_items_are_taken_in_advance():
    taken = []
    results = map_in_order(lambda item: item, counted(1000, taken), 2)
    for count in range(1, 101):
        next(results)
        assert len(taken) <= count + 4 * 2
    results.close()
    assert len(taken) < 110


def test_the_first_error_by_order_is_raised_and_the_rest_given_up():
    begun = []

    def work(item):
        begun.append(item)
        if item >= 3:
            raise ValueError(item)
        return item

    results = map_in_order(work, range(1000), 2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match=r"^3$"):
        next(results)
    assert len(begun) < 20


def test_an_error_of_the_items_is_raised():
    def items():
        yield 1
        raise KeyError("x")

    with pytest.raises(KeyError):
        list(map_in_order(lambda item: item, items(), 2))
    with pytest.raises(KeyError):
        list(one_ahead(items()))


def test_each_thread_is_started():
    begun, both = [], threading.Barrier(2, timeout=60)

    def start():
        begun.append(threading.get_ident())
        both.wait()

    list(map_in_order(lambda item: item, range(10), 2, start=start))
    assert len(set(begun)) == 2 and threading.get_ident() not in begun


def test_one_item_is_made_ahead_and_no_more():
    taken = []
    items = one_ahead(counted(10, taken))
    for count in range(10):
        assert next(items) == count
        assert len(taken) <= count + 2
    assert list(items) == []


def test_one_ahead_computes_while_its_item_is_in_use():
    made = threading.Event()

    def items():
        yield 1
        made.set()
        yield 2

    ahead = one_ahead(items())
    assert next(ahead) == 1
    assert made.wait(60)
    ahead.close()
