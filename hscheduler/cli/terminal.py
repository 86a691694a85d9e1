"""A terminal whose last lines are redrawn in place, with other lines above them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import TextIO

from rich.console import Console, RenderableType
from rich.text import Text

#: A redraw takes a few milliseconds; a reader cannot follow faster updates.
REDRAW_S = 0.5


def is_live(stream: TextIO) -> bool:
    """Return whether a stream is a terminal on which lines can be redrawn."""
    console = Console(file=stream)
    return console.is_terminal and stream.isatty() and not console.is_dumb_terminal


class Screen:
    """Redraws a renderable at the bottom of a terminal; lines given to :meth:`tell` scroll by above it.

    No terminal mode is changed and the cursor is not hidden, so a crash leaves the terminal usable.  ``rich.live``
    hides it, and leaves parts of old lines when a window becomes narrower.

    Parameters
    ----------
    stream : text file
        A terminal.
    drawn : callable
        Returns what to draw, which must fit the console.  Called on a thread of its own.
    every_s : float, seconds
    """

    def __init__(self, stream: TextIO, drawn: Callable[[], RenderableType], every_s: float = REDRAW_S) -> None:
        self._stream = stream
        self._renderable = drawn
        self._every_s = every_s
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._drawn: list[str] = []
        #: Of the window when they were drawn.
        self._columns = 0
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
                up = len(self._drawn)
                if columns != self._columns:
                    # A window that became narrower has wrapped the drawn lines.
                    up = sum(max(1, -(-Text.from_ansi(line).cell_len // max(1, columns))) for line in self._drawn)
                self._columns = columns
                lines = self._lines(max(1, columns - 1), max(1, rows - 1))
                printable = ["".join(c if c.isprintable() else "?" for c in line) for line in news]
                home = f"\r\x1b[{up}A" if up else "\r"
                # News may wrap onto several rows, on which parts of the table would remain.
                clear = "\x1b[J" if news else ""
                body = "".join(f"\x1b[K{line}\n" for line in [*printable, *lines])
                self._drawn = lines
                self._stream.write(f"{home}{clear}{body}\x1b[J")
                self._stream.flush()
            except (OSError, ValueError):
                # The terminal was closed; the sweep continues.
                self._ends.set()

    def _lines(self, width: int, height: int) -> list[str]:
        """Return what to draw as lines with escape sequences for colours, if the terminal has them."""
        self._console.size = (width, height)
        with self._console.capture() as capture:
            self._console.print(self._renderable())
        return capture.get().splitlines()[:height]
