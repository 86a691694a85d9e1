"""The page of one job, in the design of all pages: a file, or served while the job trains."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eps.core.events import ENDED_STATES
from eps.errors import DeadlineError
from eps.job.display import change_title, phase_texts, status_text
from eps.system.text_server import LocalServer, Pages, Text
from eps.system.web import Farewell, as_json, asset, document, drawn

Status = Mapping[str, Any]
Entries = Sequence[Mapping[str, Any]]

#: Most iterations that a page draws.
MOST_POINTS = 2_000
#: Keys of a history entry that are not metrics.
_NOT_METRICS = ("clock", "seconds")
#: Keys of every history entry.
_IN_ALL = {*_NOT_METRICS, "loss"}
#: Files beside the page of an ended job on YARN.
RESULT_LINKS = ("status.json", "report.json", "master.log")
_HTML = "text/html; charset=utf-8"


def content(status: Status, history: Entries = (), *, links: Sequence[str] = ()) -> dict[str, Any]:
    """Return what the page shows of a job.

    Parameters
    ----------
    status : mapping
        What ``eps status --json`` prints.
    history : sequence of mapping
        Loss and metrics of iterations.
    links : sequence of str
        Files or texts beside the page.
    """
    iterations = int(status["iterations"])
    measured = [k for k, entry in enumerate(history) if entry.keys() - _IN_ALL]
    thinned = [history[k] for k in drawn(len(history), measured, MOST_POINTS)]
    names = dict.fromkeys(name for entry in thinned for name in entry if name not in _NOT_METRICS)
    return {
        "name": str(status["name"]),
        "state": str(status["state"]),
        "reason": str(status.get("reason") or ""),
        "live": status["state"] not in ENDED_STATES,
        "clock": int(status["clock"]),
        "iterations": iterations,
        "loss": status.get("loss"),
        "metrics": dict(status.get("metrics") or {}),
        "workers": status.get("workers"),
        "servers": status.get("servers"),
        "curves": {
            # The last clock evaluates the final parameters: it is no iteration.
            name: [
                [entry["seconds"], min(int(entry["clock"]) + 1, iterations), entry[name]]
                for entry in thinned
                if name in entry
            ]
            for name in names
        },
        # [clock, workers, servers] from each change of size on.
        "sizes": list(status.get("sizes", ())),
        "changes": [
            [change_title(change), ", ".join(phase_texts(change).values()), change.get("pause_s")]
            for change in [*status.get("changes", ()), *([status["plan"]] if status.get("plan") else [])]
        ],
        "text": status_text(status),
        "links": list(links),
    }


def page_of(status: Status, history: Entries = (), *, links: Sequence[str] = ()) -> str:
    """Return a job's page; parameters as of :func:`content`.  That of a running job polls its server."""
    shown = content(status, history, links=links)
    body = asset(__name__, "job.html").replace("@NAME@", html.escape(shown["name"]))
    return document(
        f"{shown['name']}: {shown['state']}",
        # For readers without scripts.
        body.replace("@TEXT@", html.escape(shown["text"])),
        as_json(shown),
        styles=[],
        scripts=[asset(__name__, "job.js")],
        live=shown["live"],
    )


def pages_of(
    status: Callable[[], Status], history: Callable[[int], Entries] = lambda most: (), links: Sequence[str] = ()
) -> Pages:
    """Return the page of a running job and its data.

    Parameters
    ----------
    status : callable
        Returns what ``eps status --json`` prints; called on the thread of each request.
    history : callable
        Takes a number of entries and returns at most so many of the history.
    links : sequence of str
        As for :func:`content`.
    """
    return {
        "/": lambda: Text(_HTML, page_of(status(), history(MOST_POINTS), links=links)),
        "/page.json": lambda: Text("application/json", as_json(content(status(), history(MOST_POINTS), links=links))),
    }


class JobPageServer(LocalServer):
    """Serves the page of a job, with the status that it was given last.  Parameters and errors: LocalServer."""

    def __init__(self, port: int) -> None:
        self._taken: tuple[Status | None, list[Mapping[str, Any]]] = None, []
        self._farewell = Farewell()
        super().__init__(port, {"/": self._page, "/page.json": self._news})

    def take(self, status: Status, history: Entries = ()) -> None:
        """Show a status from now on, and further entries of the history."""
        self._taken = status, [*self._taken[1], *history]

    def end(self, status: Status) -> None:
        """Show the final status; wait a little until an open page has fetched it."""
        self.take(status)
        self._farewell.wait()

    def _latest(self) -> tuple[Status, list[Mapping[str, Any]]]:
        status, history = self._taken
        if status is None:
            raise DeadlineError("the job has not started; this page reloads itself")
        return status, history

    def _page(self) -> Text:
        status, history = self._latest()
        return Text(_HTML, page_of(status, history), lambda: self._farewell.note(status["state"] not in ENDED_STATES))

    def _news(self) -> Text:
        status, history = self._latest()
        live = status["state"] not in ENDED_STATES
        data = as_json(content(status, history))
        return Text("application/json", data, lambda: self._farewell.note(live, is_poll=True))
