"""A sweep in a terminal: a live table that is redrawn in place, with log lines above it.

:func:`lines_of` renders the table as lines.  :class:`Screen` writes them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from textwrap import wrap
from typing import TextIO

from eps.job.display import number_text, seconds_text, table
from hscheduler.core.jobs import Phase
from hscheduler.reports.view import Look, Row

#: Phases for which the last column shows the reason of the end instead of the ETA.
_ENDED_EARLY = (Phase.FAILED, Phase.KILLED)
#: A redraw takes a millisecond; a reader cannot follow faster updates.
REDRAW_S = 0.25
#: Lines of the queue and of decisions on a tall terminal.
_MOST_WAITING, _MOST_DECISIONS = 5, 3
#: Most lines for a queued job and its reason.
_MOST_LINES = 2
#: Columns dropped on a narrow terminal, in this order.
_LEAST_FIRST = ("FEEDBACK", "SERVERS", "WORKERS", "ITERATION", "PHASE")
#: Short names of columns, for a narrow terminal.
_SHORT = {"WORKERS": "W", "SERVERS": "S", "ITERATION": "ITER"}
#: Order of trials by phase: running, finished, others.
_ORDER = (
    Phase.TRAINING,
    Phase.EARLY_FEEDBACK,
    Phase.STARTING,
    Phase.RESTARTING,
    Phase.PAUSING,
    Phase.ENDING,
    Phase.PAUSED,
    Phase.FINISHED,
    Phase.FAILED,
    Phase.KILLED,
)


def lines_of(look: Look, width: int, height: int) -> list[str]:
    """Return a sweep as lines of ASCII text.

    Parameters
    ----------
    look : Look
    width, height : int
        Columns and rows of the terminal: the result fits.
    """
    lines = [_counts(look), _totals(look)]
    room = height - len(lines)
    # Trials take precedence: a short terminal shows no queue and no decisions.
    decisions = _of_decisions(look, _MOST_DECISIONS if room >= 20 else 1 if room >= 10 else 0)
    shown = [row for row in look.rows if row.phase is not Phase.QUEUED]
    wanted = len(shown) + 1 if shown else 0
    least_waiting = _MOST_WAITING if room >= 20 else 2 if room >= 10 else 0
    left = room - len(decisions) - wanted
    waiting = _of_queue(look, width, max(least_waiting, left - 2) if room >= 10 else 0)
    lines += _of_trials(look, shown, width, room - len(decisions) - len(waiting)) + waiting + decisions
    return [_ascii(line)[: max(1, width)].rstrip() for line in lines[: max(1, height)]]


def _counts(look: Look) -> str:
    parts = [f"{n} {phase}" for phase in Phase if (n := look.count(phase))]
    to_come = look.trials - len(look.rows)
    parts += [f"{to_come} to come"] if to_come > 0 else []
    return f"H-scheduler, {look.policy}, {seconds_text(look.now_s)}: {', '.join(parts) or 'nothing yet'}"


def _totals(look: Look) -> str:
    text = f"{look.used_vcores} of {look.vcores} vcores in use"
    if look.best is not None:
        text += f"; best {look.metric} {number_text(look.best.result)} ({look.best.job_id})"
    return text


def _of_trials(look: Look, rows: Sequence[Row], width: int, room: int) -> list[str]:
    if not rows or room < 2:
        return []
    # Of the ended trials, the latest first.
    ranked = sorted(rows, key=lambda row: (_ORDER.index(row.phase), -(row.ended_s or 0.0)))
    few = ranked if len(ranked) < room else ranked[: max(1, room - 2)]
    # Reasons may be cut off; other rows must fit.
    needed = {k for k, row in enumerate(few, 1) if row.phase not in _ENDED_EARLY}
    lines = _fitting([_head(look), *(_cells(look, row) for row in few)], {0, *needed}, width)
    return lines + ([f"... and {len(ranked) - len(few)} more"] if len(few) < len(ranked) else [])


def _fitting(rows: Sequence[list[str]], needed: Collection[int], width: int) -> list[str]:
    """Return rows as an aligned table.  If it is too wide, shorten the headings, then drop the least important columns.

    Parameters
    ----------
    rows : sequence of list of str
        The heading first.
    needed : collection of int
        Positions of the rows whose last cell must fit; the others may be cut off.
    width : int
    """
    head, *others = rows
    short = [_SHORT.get(name, name) for name in head]
    for names, dropped in [(head, 0), *((short, number) for number in range(len(_LEAST_FIRST) + 1))]:
        kept = [k for k, name in enumerate(head) if name not in _LEAST_FIRST[:dropped]]
        shown = [[row[k] for k in kept] for row in (names, *others)]
        whole = [[*cells[:-1], cells[-1] if k in needed else ""] for k, cells in enumerate(shown)]
        if max(map(len, table(whole, indent="").splitlines())) <= width:
            break
    return table(shown, indent="").splitlines()


def _head(look: Look) -> list[str]:
    metric = [] if look.metric == "loss" else [look.metric.upper()]
    return ["TRIAL", "PHASE", "WORKERS", "SERVERS", "ITERATION", "FEEDBACK", "LOSS", *metric, "ETA"]


def _cells(look: Look, row: Row) -> list[str]:
    by_loss = look.metric == "loss"
    eta_s, loss = row.eta_s, row.result if by_loss and row.result is not None else row.loss
    best = look.best is not None and row.job_id == look.best.job_id
    return [
        row.job_id + ("*" if best else ""),
        str(row.phase),
        str(row.workers or "-"),
        str(row.servers or "-"),
        f"{row.iteration}/{row.iterations}" if row.iterations else str(row.iteration),
        number_text(row.feedback),
        number_text(loss),
        *([] if by_loss else [number_text(row.result)]),
        row.why if row.phase in _ENDED_EARLY and row.why else "-" if eta_s is None else seconds_text(eta_s),
    ]


def _of_queue(look: Look, width: int, most: int) -> list[str]:
    """Return the heading and at most ``most`` lines of the queue."""
    if not look.num_queued or most < 1:
        return []
    lines: list[str] = []
    for job_id, why in look.queue:
        if len(lines) >= most:
            break
        text = f"{job_id}  {why or 'is queued'}"
        lines += wrap(text, max(20, width), subsequent_indent="    ", max_lines=_MOST_LINES, placeholder=" ...")
    return [f"QUEUE ({look.num_queued})", *lines[:most]]


def _of_decisions(look: Look, most: int) -> list[str]:
    if not look.decisions or most < 1:
        return []
    latest = [f"{at_s:8.1f} s  {sentence}" for at_s, sentence in look.decisions[-most:]]
    return [f"DECISIONS ({look.num_decisions})", *latest]


def _ascii(text: str) -> str:
    """Return a text of characters that take one column each, without control characters."""
    return "".join(c if " " <= c <= "~" else "?" for c in text)


class Screen:
    """Redraws lines at the bottom of a terminal; lines given to :meth:`tell` scroll by above them.

    No terminal mode is changed, so a crash leaves the terminal usable, with the last lines on it.

    Parameters
    ----------
    stream : text file
        A terminal.
    lines : callable
        Returns the lines to draw.  Called with the available columns and rows, on a thread of its own.
    every_s : float, seconds
    """

    def __init__(self, stream: TextIO, lines: Callable[[int, int], list[str]], every_s: float = REDRAW_S) -> None:
        self._stream = stream
        self._lines = lines
        self._every_s = every_s
        self._drawn: list[str] = []
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="screen", daemon=True)
        self._thread.start()

    def tell(self, news: Iterable[str]) -> None:
        """Write lines above the redrawn ones."""
        self._draw(list(news))

    def close(self) -> None:
        """Draw for the last time.  Idempotent."""
        if not self._ends.is_set():
            self._ends.set()
            self._thread.join()
            self._draw([])

    def _serve(self) -> None:
        while not self._ends.wait(self._every_s):
            self._draw([])

    def _draw(self, news: list[str]) -> None:
        with self._lock:
            try:
                columns, rows = os.get_terminal_size(self._stream.fileno())
                # A window that became narrower has wrapped the drawn lines.
                up = sum(max(1, -(-len(line) // max(1, columns))) for line in self._drawn)
                self._drawn = self._lines(max(1, columns - 1), max(1, rows - 1))
                printable = ["".join(c if c.isprintable() else "?" for c in line) for line in news]
                home = f"\r\x1b[{up}A" if up else "\r"
                # News may wrap onto several rows, on which parts of the table would remain.
                clear = "\x1b[J" if news else ""
                body = "".join(f"\x1b[K{line}\n" for line in [*printable, *self._drawn])
                self._stream.write(f"{home}{clear}{body}\x1b[J")
                self._stream.flush()
            except (OSError, ValueError):
                # The terminal was closed; the sweep continues.
                self._ends.set()
