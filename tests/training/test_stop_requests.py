import os
import signal
import threading

import pytest

from gmmseg.training.stop_requests import stop_requests


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_raises_the_flag_and_the_old_handlers_come_back(number):
    before = signal.getsignal(number)
    with stop_requests() as stop:
        assert not stop
        os.kill(os.getpid(), number)
        assert stop
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(("pause", "interrupts"), [(0.5, False), (10.0, True)])
def test_one_that_follows_at_once_is_the_same_request(monkeypatch, pause, interrupts):
    clock = iter([100.0, 100.0 + pause])
    monkeypatch.setattr("gmmseg.training.stop_requests.time.monotonic", lambda: next(clock))
    interrupted = False
    try:
        with stop_requests() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop
    except KeyboardInterrupt:
        interrupted = True
    assert interrupted == interrupts


def test_outside_the_main_thread_nothing_is_caught():
    seen = []

    def work():
        with stop_requests() as stop:
            seen.append(bool(stop))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]
