"""The page of a sweep: one file without anything from elsewhere, from a report; and what is served of one that runs.

Source: EPS §7 (Figs 14 to 19 are what it shows of one sweep).
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from eps.errors import ConfigError, ResourceError
from eps.storage.atomic import PUBLIC_MODE, write_bytes_atomic
from eps.system.metrics_text import CONTENT_TYPE
from eps.system.text_server import Pages, Text, TextServer

Reports = Mapping[str, Mapping[str, Any]]

#: An open page asks for news every second: this long it may take to see the end.
FAREWELL_S = 3.0
#: A report is served again for so long before another one is made.
KEPT_S = 1.0
#: Points of all loss curves together that a page draws, and the fewest of each.
_CURVE_POINTS, _FEWEST = 40_000, 10


def page(reports: Reports, *, live: bool = False) -> str:
    """Return the page of reports by policy; a live one asks its server for news every second."""
    return _page(_data(reports), live)


def write_page(path: Path, reports: Reports) -> None:
    """Write the page of reports by policy, for everybody to read.

    Raises
    ------
    StorageError
        The file cannot be written.
    """
    write_bytes_atomic(path, page(reports).encode(), mode=PUBLIC_MODE)


def _page(data: str, live: bool) -> str:
    template = files("hscheduler.page").joinpath("template.html").read_text(encoding="utf-8")
    # In a script element only what follows this sign is read as anything but text: an end, a comment, another script.
    return template.replace("@LIVE@", json.dumps(live)).replace("@DATA@", data.replace("<", "\\u003c"))


def _data(reports: Reports) -> str:
    drawn = {policy: _drawn(report) for policy, report in reports.items()}
    return json.dumps(drawn, allow_nan=False, default=str)


def _drawn(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a report with no more of its curves than a browser draws at once."""
    most = max(_FEWEST, _CURVE_POINTS // max(1, len(report["trials"])))
    if all(len(trial["curve"]) <= most for trial in report["trials"]):
        return report
    return {**report, "trials": [{**trial, "curve": _thinned(trial["curve"], most)} for trial in report["trials"]]}


def _thinned(curve: Sequence[Any], most: int) -> Sequence[Any]:
    if len(curve) <= most:
        return curve
    return [curve[k * (len(curve) - 1) // (most - 1)] for k in range(most)]


class LiveReports:
    """What is served of a sweep that runs: its page, the news that an open page asks for, its metrics.

    Reports are made where somebody looks, on the thread of the request, and at most one each second.

    Parameters
    ----------
    look : callable, optional
        As of :meth:`show`; default: nothing has begun.
    metrics : callable, optional
        Returns what ``/metrics`` says, in the format of Prometheus; called for every request, on a thread of its own.
    """

    def __init__(self, look: Callable[[], Reports] = dict, metrics: Callable[[], str] | None = None) -> None:
        #: Held while a report is made: whoever else wants one meanwhile is served the same.
        self._making = threading.Lock()
        #: When news were last sent, on the monotonic clock.
        self._watched_s = -math.inf
        self._end_seen = threading.Event()
        #: What makes reports, and whether there will be others.
        self._shown: tuple[Callable[[], Reports], bool] = look, True
        #: What made the latest ones, when that was, on the monotonic clock, and those as JSON.
        self._made: tuple[Callable[[], Reports] | None, float, str] = None, -math.inf, ""
        self.pages: Pages = {"/": self._page, "/report.json": self._news}
        if metrics is not None:
            self.pages = {**self.pages, "/metrics": lambda: Text(CONTENT_TYPE, metrics())}

    def show(self, look: Callable[[], Reports], *, live: bool = True) -> None:
        """Serve from now on what this returns, no report where there is none yet; it may raise EpsError."""
        self._shown = look, live

    def end(self, reports: Reports) -> None:
        """Serve how it ended; return when a page that is open somewhere has seen it, or soon."""
        self.show(lambda: reports, live=False)
        if time.monotonic() - self._watched_s < FAREWELL_S:
            self._end_seen.wait(FAREWELL_S)

    def _latest(self) -> tuple[str, bool]:
        """Return the reports as JSON, and whether there will be others."""
        with self._making:
            look, live = self._shown
            made_by, made_s, data = self._made
            if made_by is not look or time.monotonic() >= made_s + KEPT_S:
                data = _data(look())
                self._made = look, time.monotonic(), data
            return data, live

    def _page(self) -> Text:
        # Of a sweep that has not begun too: the page asks for news by itself.
        data, live = self._latest()
        return Text("text/html; charset=utf-8", _page(data, live), lambda: self._is_seen(live))

    def _news(self) -> Text:
        data, live = self._latest()
        news = f'{{"reports": {data}, "live": {json.dumps(live)}}}'

        def sent() -> None:
            self._watched_s = time.monotonic()
            self._is_seen(live)

        return Text("application/json", news, sent)

    def _is_seen(self, live: bool) -> None:
        if not live:
            self._end_seen.set()


class PageServer(TextServer):
    """Serves the page of a sweep on this host's loopback interface.

    Parameters
    ----------
    port : int
        0 takes any that is free.
    metrics : callable, optional
        As of :class:`LiveReports`.

    Raises
    ------
    ConfigError
        It is no port.
    ResourceError
        The port is taken.
    """

    def __init__(self, port: int, metrics: Callable[[], str] | None = None) -> None:
        if not 0 <= port < 1 << 16:
            raise ConfigError(f"web is {port}, but must be a port, or 0, which takes one that is free")
        self._live = LiveReports(metrics=metrics)
        try:
            super().__init__("127.0.0.1", port, self._live.pages)
        except OSError as error:
            raise ResourceError(f"web is {port}, but that port cannot be used: {error.strerror}") from None
        self.show, self.end = self._live.show, self._live.end

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.port}/"
