"""The page of a sweep: a self-contained HTML file made from a report, and a server for a running sweep.

Source: EPS §7 (the page shows Figs 14 to 19 for one sweep).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eps.errors import ConfigError
from eps.storage.atomic import PUBLIC_MODE, write_bytes_atomic
from eps.system.metrics_text import CONTENT_TYPE
from eps.system.text_server import LocalServer, Pages, Text
from eps.system.web import Farewell, as_json, asset, document
from hscheduler.page.content import content
from hscheduler.page.logs import tails

Reports = Mapping[str, Mapping[str, Any]]

#: Seconds for which a report is cached.
KEPT_S = 1.0
#: Why a trial or a sweep that a reader of the page stopped has ended.
STOPPED = "stopped on the page"
_PLAIN = "text/plain; charset=utf-8"
_SCRIPTS = ("state.js", "bands.js", "charts.js", "tables.js", "trial.js", "main.js")


@dataclass(frozen=True)
class Stops:
    """What a reader of a live page may stop.  The functions raise EpsError if they cannot."""

    #: Takes the trial.
    trial: Callable[[str], None]
    #: Takes the name of a running sweep.
    sweep: Callable[[str], None]
    #: Returns the names of the running sweeps.
    sweeps: Callable[[], Sequence[str]]


def page(reports: Reports) -> str:
    """Return the HTML page of reports, by policy."""
    return _document(as_json(_data(reports, live=False, stops=None)), live=False)


def _document(data: str, *, live: bool) -> str:
    """Return the HTML page of data as JSON.  A live page polls its server every second."""
    return document(
        "H-scheduler",
        asset(__name__, "body.html"),
        data,
        styles=[asset(__name__, "page.css")],
        scripts=[asset(__name__, name) for name in _SCRIPTS],
        live=live,
    )


def write_page(path: Path, reports: Reports) -> None:
    """Write the HTML page of reports, by policy, readable for all users.

    Raises
    ------
    StorageError
        The file cannot be written.
    """
    write_bytes_atomic(path, page(reports).encode(), mode=PUBLIC_MODE)


def _data(reports: Reports, *, live: bool, stops: Stops | None) -> dict[str, Any]:
    return {
        "live": live,
        "stops": None if stops is None or not live else {"sweeps": list(stops.sweeps())},
        "reports": [content(each, live=live, logs=tails(each)) for each in reports.values()],
    }


class LiveReports:
    """The web resources of a running sweep: its page, the page's data as JSON, and its metrics.

    Reports are made on request, on the thread of the request, at most once a second.

    Parameters
    ----------
    metrics : callable, optional
        Returns ``/metrics`` in the format of Prometheus; called for each request, on the thread of the request.
    """

    def __init__(self, metrics: Callable[[], str] | None = None) -> None:
        #: Held while a report is made; concurrent requests share it.
        self._making = threading.Lock()
        self._farewell = Farewell()
        #: The function that makes reports (none before a sweep begins), whether it still runs, and what may be stopped.
        self._shown: tuple[Callable[[], Reports], bool, Stops | None] = dict, True, None
        #: The cached data: the function that made its reports, the time on the monotonic clock, the JSON.
        self._made: tuple[Callable[[], Reports] | None, float, str] = None, -math.inf, ""
        self.pages: Pages = {"/": self._page, "/page.json": self._news}
        if metrics is not None:
            self.pages = {**self.pages, "/metrics": lambda: Text(CONTENT_TYPE, metrics())}

    def show(self, look: Callable[[], Reports], *, live: bool = True, stops: Stops | None = None) -> None:
        """Serve the reports that ``look`` returns from now on; it may return none yet, or raise EpsError."""
        self._shown = look, live, stops

    def end(self, reports: Reports) -> None:
        """Serve the final reports; wait a little until an open page has fetched them."""
        self.show(lambda: reports, live=False)
        self._farewell.wait()

    def stop(self, wanted: Mapping[str, str]) -> Text:
        """Stop what a request names: a ``trial`` by its id, or a ``sweep`` by its name; return what was done.

        Raises
        ------
        ConfigError
            It names nothing that this page can stop, or the sweep has ended.
        """
        _, live, stops = self._shown
        if stops is None or not live:
            raise ConfigError("nothing of this sweep can be stopped here")
        if "trial" in wanted:
            stops.trial(wanted["trial"])
            return Text(_PLAIN, f"{wanted['trial']} is stopping\n")
        name, running = wanted.get("sweep", ""), stops.sweeps()
        if name not in running:
            raise ConfigError(f"sweep is {name!r}, but must be one that runs: {', '.join(running) or 'none does'}")
        stops.sweep(name)
        return Text(_PLAIN, f"sweep {name} is stopping\n")

    def _latest(self) -> tuple[str, bool]:
        """Return the page's data as JSON, and whether the sweep still runs."""
        with self._making:
            look, live, stops = self._shown
            made_by, made_s, data = self._made
            if made_by is not look or time.monotonic() >= made_s + KEPT_S:
                data = as_json(_data(look(), live=live, stops=stops))
                self._made = look, time.monotonic(), data
            return data, live

    def _page(self) -> Text:
        # Also before the sweep begins: the page polls for its reports.
        data, live = self._latest()
        return Text("text/html; charset=utf-8", _document(data, live=live), lambda: self._farewell.note(live))

    def _news(self) -> Text:
        data, live = self._latest()
        return Text("application/json", data, lambda: self._farewell.note(live, is_poll=True))


class PageServer(LocalServer):
    """Serves the page of a sweep.

    Parameters
    ----------
    port : int
        As of :class:`LocalServer`, whose errors it raises.
    metrics : callable, optional
        As for :class:`LiveReports`.
    """

    def __init__(self, port: int, metrics: Callable[[], str] | None = None) -> None:
        self._live = LiveReports(metrics=metrics)
        super().__init__(port, self._live.pages, {"/stop": self._live.stop})
        self.show, self.end = self._live.show, self._live.end

    @property
    def link(self) -> str:
        """URL of the page with the key for its buttons, which other users of this host must not have."""
        return f"{self.address}#key={self.key}"
