"""Work that overlaps: items are made ready in one thread while another uses those before them."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
_PATIENCE = 0.1  # seconds between two looks at whether anybody still wants the items


class _End:
    """What a queue ends with, and the error there was."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def read_ahead(
    items: Iterable[Item], depth: int, is_large: Callable[[Item], bool] = lambda item: False
) -> Iterator[Item]:
    """``items``, up to ``depth`` of them made in a thread before they are asked for; an error comes last.

    After a large one, none is made before the user has come back for the next: memory holds one of them.
    """
    ready: queue.Queue[Item | _End] = queue.Queue(depth)
    unwanted = threading.Event()
    thread = threading.Thread(target=_fill, args=(ready, items, is_large, unwanted), daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _End):
            yield item
            ready.task_done()
        if item.error is not None:
            raise item.error
    finally:
        unwanted.set()
        thread.join()


def _fill(
    ready: "queue.Queue[Item | _End]",
    items: Iterable[Item],
    is_large: Callable[[Item], bool],
    unwanted: threading.Event,
) -> None:
    """Put items into a queue until they end, or nobody wants them."""
    end = _End()
    try:
        for item in items:
            if not _put(ready, item, unwanted):
                return
            large = is_large(item)
            del item
            while large and ready.unfinished_tasks and not unwanted.wait(_PATIENCE / 10):
                pass
    except BaseException as error:  # whatever it is, the user of the items hears of it
        end = _End(error)
    _put(ready, end, unwanted)


def _put(ready: "queue.Queue[Item | _End]", item: Item | _End, unwanted: threading.Event) -> bool:
    """Whether there was room before nobody wanted it any more."""
    while not unwanted.is_set():
        try:
            ready.put(item, timeout=_PATIENCE)
        except queue.Full:
            continue
        return True
    return False
