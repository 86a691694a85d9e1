"""An interrupt that comes where it cannot be raised is raised later."""

from __future__ import annotations

import signal
import threading

import pytest

from eps.system import interrupt


class Finalised:
    """An object whose finaliser gets the interrupt."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_that_is_lost_in_a_finaliser_is_raised_at_the_next_look() -> None:
    with interrupt.noted():
        found = Finalised()
        # Python prints "Exception ignored" and continues.
        del found
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_one_is_raised_at_once_where_it_can_be() -> None:
    with pytest.raises(KeyboardInterrupt), interrupt.noted():
        signal.raise_signal(signal.SIGINT)
    with interrupt.noted():
        # That interrupt belonged to another command.
        interrupt.check()


def test_who_handles_interrupts_goes_on_doing_so() -> None:
    told: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: told.append(number))
    try:
        with interrupt.noted():
            signal.raise_signal(signal.SIGINT)
            interrupt.check()
    finally:
        signal.signal(signal.SIGINT, before)
    assert told == [signal.SIGINT]


def test_other_threads_may_use_it() -> None:
    def use() -> None:
        with interrupt.noted():
            interrupt.check()

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()


def test_what_is_ignored_is_no_interrupt() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupt.noted(), interrupt.interrupt_on_signals():
            signal.raise_signal(signal.SIGHUP)
            interrupt.check()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_who_looks_for_others_does_so_on_its_own_thread_and_while_that_lasts() -> None:
    looks: list[str] = []

    def look() -> None:
        looks.append(threading.current_thread().name)

    with interrupt.stopped_by(look):
        thread = threading.Thread(target=interrupt.raise_if_stopped)
        thread.start()
        thread.join()
        interrupt.raise_if_stopped()
    interrupt.raise_if_stopped()
    assert looks == [threading.current_thread().name]
