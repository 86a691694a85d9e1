"""Errands under a lock: nobody who brings one waits, and none is left undone."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from eps.server.errands import Errands

TIMEOUT_S = 10.0


class Rig:
    """A lock, errands under it, and a thread that holds the lock when asked to."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.after = 0
        self.errands = Errands(self.lock, self._count)
        self.done: list[int] = []
        self.all_done = threading.Event()

    def _count(self) -> None:
        self.after += 1

    def bring(self, number: int, last: int = -1) -> None:
        def errand() -> None:
            assert self.lock._is_owned()  # type: ignore[attr-defined]
            self.done.append(number)
            if number == last:
                self.all_done.set()

        self.errands.bring(errand)

    def bring_while_held(self, numbers: range) -> None:
        """Bring errands on another thread while this one has the lock, until that thread goes on."""
        thread = threading.Thread(target=lambda: [self.bring(number, numbers[-1]) for number in numbers])
        thread.start()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.errands.close()


def test_errand_is_done_at_once_where_the_lock_is_free(rig: Rig) -> None:
    rig.bring(1)
    assert rig.done == [1] and rig.after == 1


def test_who_brings_one_does_not_wait_and_whoever_lets_go_does_it(rig: Rig) -> None:
    with rig.lock:
        rig.bring_while_held(range(5))
        assert rig.done == []
        # The holder does them before it lets go, or just after.
        assert rig.errands.run()
    assert rig.done == [0, 1, 2, 3, 4]


def test_errands_are_done_in_order_also_where_nobody_passes_by(rig: Rig) -> None:
    with rig.lock:
        rig.bring_while_held(range(50))
    assert rig.all_done.wait(TIMEOUT_S)
    assert rig.done == list(range(50))


def test_errand_that_fails_is_logged_and_holds_up_no_other(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ZeroDivisionError("a bug")

    with caplog.at_level(logging.ERROR):
        rig.errands.bring(fail)
    rig.bring(2)
    assert rig.done == [2] and "an errand failed" in caplog.text


def test_errand_brought_after_the_end_is_dropped(rig: Rig) -> None:
    rig.errands.close()
    with rig.lock:
        rig.bring_while_held(range(3))
    assert rig.done == []
