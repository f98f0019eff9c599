"""Work in threads of one process, in the order of what is asked for and bounded in what is held."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def one_ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield `items`, each computed in a thread of its own while the one before is in use.

    Raises:
        Exception: what `items` raises, where the item was due.
    """
    end = object()
    with ThreadPoolExecutor(1, "one-ahead") as pool:
        coming = pool.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, items, end)
            yield item
            del item  # not held while the next one is waited for


def map_in_order(
    work: Callable[[T], R],
    items: Iterable[T],
    threads: int,
    *,
    start: Callable[[], object] = lambda: None,
) -> Iterator[R]:
    """`work` of each item, in the order of the items, in a number of threads.

    At most `4 * threads + 1` items are taken in advance of the results that were asked for.

    Args:
        work: of one item; runs in several threads at once.
        items: iterated in the caller's thread.
        threads: how many.
        start: called first in each thread.

    Raises:
        Exception: the first that an item's work raised, by order of items; work that has not
            begun is then given up.
    """
    with ThreadPoolExecutor(threads, "map", initializer=start) as pool:
        waiting: deque[Future[R]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > 4 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
