"""Requests to stop a run: signals, of which the first is a wish and a later one an order."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

_SAME_REQUEST = 2.0  # seconds within which signals are one request to stop


class StopFlag:
    """When the first request to stop came; true once there was one."""

    since: float | None = None

    def __bool__(self) -> bool:
        return self.since is not None


@contextmanager
def stop_requests() -> Iterator[StopFlag]:
    """Turn the first Ctrl-C or SIGTERM into a flag, to be looked at between steps; a later one interrupts.

    One that follows at once does not count: a launcher passes on the Ctrl-C that the terminal has sent to
    its processes already.
    """
    flag = StopFlag()

    def request(number: int, frame: object) -> None:
        now = time.monotonic()
        if flag.since is not None and now - flag.since > _SAME_REQUEST:
            raise KeyboardInterrupt
        flag.since = flag.since or now

    try:
        previous = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread, where signals cannot be handled
        previous = {}
    try:
        yield flag
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
