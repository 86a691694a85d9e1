"""What a member has to say to its job master: in order, what can wait a little in one message.

A report of a clock wakes two threads of gRPC at either end and costs the job a third of a millisecond of processor
time, which is a tenth of a short iteration.  Nobody waits for most of them, since the horizon is granted ahead.  So
they may linger; when each was made travels along, so that the job's history is as exact as without.  L2.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from eps.core.messages import Report
from eps.pb import control_pb2 as pb
from eps.rpc.codec import report_to_pb

#: Longest time that a report which can wait is kept back; less than half of the lookahead that masters grant.
LINGER_S = 0.02


class ReportQueue:
    """Reports on their way out; any thread may add, one takes them out.

    Parameters
    ----------
    now : callable
        Seconds, steady.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._changed = threading.Condition()
        self._waiting: list[tuple[pb.Report, float]] = []
        self._urgent = False
        self._closed = False

    def put(self, report: Report, *, can_wait: bool = False) -> None:
        """Add a report; returns at once.  One that cannot wait takes those before it along."""
        self.put_message(report_to_pb(report), can_wait=can_wait)

    def put_message(self, message: pb.Report, *, can_wait: bool = False) -> None:
        """Add a report in its wire form."""
        made_s = self._now()
        with self._changed:
            first = not self._waiting
            self._waiting.append((message, made_s))
            if not can_wait:
                self._urgent = True
            # Who lingers already needs no further call for what can wait.
            if first or not can_wait:
                self._changed.notify()

    def close(self) -> None:
        """End :meth:`batches` when everything that waits has been taken."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def batches(self) -> Iterator[pb.Reports]:
        """Yield what is to be sent now, until :meth:`close`."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting) or self._closed)
                if not self._waiting:
                    return
                self._changed.wait_for(lambda: self._urgent or self._closed, LINGER_S)
                taken, self._waiting, self._urgent = self._waiting, [], False
            batch, now_s = pb.Reports(), self._now()
            for message, made_s in taken:
                message.age_s = now_s - made_s
                batch.reports.append(message)
            yield batch
