"""The page of a sweep: a self-contained HTML file made from a report, and a server for a running sweep.

Source: EPS §7 (the page shows Figs 14 to 19 for one sweep).
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

#: Seconds for which the server waits until an open page, which polls every second, has seen the end.
FAREWELL_S = 3.0
#: Seconds for which a report is cached.
KEPT_S = 1.0
#: Most points of all loss curves together, and the minimum for each curve.
_CURVE_POINTS, _FEWEST = 40_000, 10


def page(reports: Reports, *, live: bool = False) -> str:
    """Return the HTML page of reports, by policy.  A live page polls its server every second."""
    return _page(_data(reports), live)


def write_page(path: Path, reports: Reports) -> None:
    """Write the HTML page of reports, by policy, readable for all users.

    Raises
    ------
    StorageError
        The file cannot be written.
    """
    write_bytes_atomic(path, page(reports).encode(), mode=PUBLIC_MODE)


def _page(data: str, live: bool) -> str:
    template = files("hscheduler.page").joinpath("template.html").read_text(encoding="utf-8")
    # Only "<" can end the script element or begin a comment in it.
    return template.replace("@LIVE@", json.dumps(live)).replace("@DATA@", data.replace("<", "\\u003c"))


def _data(reports: Reports) -> str:
    drawn = {policy: _drawn(report) for policy, report in reports.items()}
    return json.dumps(drawn, allow_nan=False, default=str)


def _drawn(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a report with its curves thinned to what a browser can draw."""
    most = max(_FEWEST, _CURVE_POINTS // max(1, len(report["trials"])))
    if all(len(trial["curve"]) <= most for trial in report["trials"]):
        return report
    return {**report, "trials": [{**trial, "curve": _thinned(trial["curve"], most)} for trial in report["trials"]]}


def _thinned(curve: Sequence[Any], most: int) -> Sequence[Any]:
    if len(curve) <= most:
        return curve
    return [curve[k * (len(curve) - 1) // (most - 1)] for k in range(most)]


class LiveReports:
    """The web resources of a running sweep: its page, its report as JSON, and its metrics.

    Reports are made on request, on the thread of the request, at most once a second.

    Parameters
    ----------
    look : callable, optional
        As for :meth:`show`; default: no sweep has begun.
    metrics : callable, optional
        Returns ``/metrics`` in the format of Prometheus; called for each request, on the thread of the request.
    """

    def __init__(self, look: Callable[[], Reports] = dict, metrics: Callable[[], str] | None = None) -> None:
        #: Held while a report is made; concurrent requests share it.
        self._making = threading.Lock()
        #: When an open page last polled, on the monotonic clock.
        self._watched_s = -math.inf
        self._end_seen = threading.Event()
        #: The function that makes reports, and whether the sweep still runs.
        self._shown: tuple[Callable[[], Reports], bool] = look, True
        #: The cached reports: the function that made them, the time on the monotonic clock, and the JSON text.
        self._made: tuple[Callable[[], Reports] | None, float, str] = None, -math.inf, ""
        self.pages: Pages = {"/": self._page, "/report.json": self._news}
        if metrics is not None:
            self.pages = {**self.pages, "/metrics": lambda: Text(CONTENT_TYPE, metrics())}

    def show(self, look: Callable[[], Reports], *, live: bool = True) -> None:
        """Serve the reports that ``look`` returns from now on; it may return none yet, or raise EpsError."""
        self._shown = look, live

    def end(self, reports: Reports) -> None:
        """Serve the final reports; wait up to :data:`FAREWELL_S` for an open page to fetch them."""
        self.show(lambda: reports, live=False)
        if time.monotonic() - self._watched_s < FAREWELL_S:
            self._end_seen.wait(FAREWELL_S)

    def _latest(self) -> tuple[str, bool]:
        """Return the reports as JSON, and whether the sweep still runs."""
        with self._making:
            look, live = self._shown
            made_by, made_s, data = self._made
            if made_by is not look or time.monotonic() >= made_s + KEPT_S:
                data = _data(look())
                self._made = look, time.monotonic(), data
            return data, live

    def _page(self) -> Text:
        # Also before the sweep begins: the page polls for its reports.
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
        0 picks a free port.
    metrics : callable, optional
        As for :class:`LiveReports`.

    Raises
    ------
    ConfigError
        The number is not a port.
    ResourceError
        The port is in use.
    """

    def __init__(self, port: int, metrics: Callable[[], str] | None = None) -> None:
        if not 0 <= port < 1 << 16:
            raise ConfigError(f"web is {port}, but must be a port, or 0 for a free one")
        self._live = LiveReports(metrics=metrics)
        try:
            super().__init__("127.0.0.1", port, self._live.pages)
        except OSError as error:
            raise ResourceError(f"web is {port}, but that port cannot be used: {error.strerror}; try 0") from None
        self.show, self.end = self._live.show, self._live.end

    @property
    def address(self) -> str:
        """URL of the page."""
        return f"http://127.0.0.1:{self.port}/"
