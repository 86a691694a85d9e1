"""A pseudo-terminal of which is kept what a person sees."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
import threading

TIMEOUT_S = 60.0


class Terminal:
    """A terminal of which is kept what a person sees: enough of one for what is written to it."""

    def __init__(self, columns: int, rows: int) -> None:
        self.master, slave = pty.openpty()
        self.stream = os.fdopen(slave, "w", encoding="utf-8")
        self.resize(columns, rows)
        #: Every row since the beginning, the scrolled ones too; the cursor's.
        self.rows: list[str] = [""]
        self.at = 0
        self._column = 0
        #: Kinds of escape sequences that came.
        self.sequences: set[str] = set()
        self._seen = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def resize(self, columns: int, rows: int) -> None:
        self.columns, self.height = columns, rows
        fcntl.ioctl(self.stream.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait_for(self, text: str) -> None:
        with self._seen:
            assert self._seen.wait_for(lambda: any(text in line for line in self.rows), TIMEOUT_S), self.rows

    def lines(self) -> list[str]:
        """Return what is seen when all has been read; nobody writes any more."""
        self.close()
        return [line.rstrip() for line in self.rows]

    def close(self) -> None:
        """Let go of it; harmless when repeated."""
        if not self.stream.closed:
            self.stream.close()
            self._thread.join(TIMEOUT_S)
            os.close(self.master)

    def _read(self) -> None:
        text = ""
        while True:
            try:
                part = os.read(self.master, 1 << 16)
            except OSError:
                return
            text += part.decode()
            whole, text = re.fullmatch(r"(.*?)(\x1b(?:\[[\d;]*)?)?", text, re.DOTALL).groups(default="")  # type: ignore[union-attr]
            with self._seen:
                for token in re.findall(r"\x1b\[[\d;]*[A-Za-z]|[^\x1b]", whole):
                    self._take(token)
                self._seen.notify_all()

    def _take(self, token: str) -> None:
        if token.startswith("\x1b"):
            self.sequences.add(token[-1])
        if token.endswith("m") and token.startswith("\x1b"):
            # A colour.
            return
        if token == "\r":
            self._column = 0
        elif token == "\n":
            self.at += 1
            self._column = 0
            self.rows += [""] * (self.at + 1 - len(self.rows))
        elif token.startswith("\x1b") and token.endswith("A"):
            # No further up than its first row.
            self.at = max(self.at - int(token[2:-1]), len(self.rows) - self.height, 0)
        elif token == "\x1b[K":
            self.rows[self.at] = self.rows[self.at][: self._column]
        elif token == "\x1b[J":
            self.rows[self.at] = self.rows[self.at][: self._column]
            del self.rows[self.at + 1 :]
        else:
            line = self.rows[self.at].ljust(self._column)
            self.rows[self.at] = line[: self._column] + token + line[self._column + 1 :]
            self._column += 1
            if self._column == self.columns:
                # What is drawn in place never gets here; news may.
                self._take("\n")
