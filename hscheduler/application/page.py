"""The page of a sweep that is an application: YARN's proxy shows it as the tracking URL, by relative links."""

from __future__ import annotations

from collections.abc import Callable

from eps.metrics_server import TextServer
from eps.metrics_text import CONTENT_TYPE
from hscheduler.page import Reports, news, page


class ApplicationPage(TextServer):
    """Serves a sweep's page.

    Parameters
    ----------
    host : str
        Where YARN's proxy reaches it.
    look : callable
        Returns the reports by policy; called on a thread of each request.
    metrics : callable
        Returns what ``/metrics`` says.
    """

    def __init__(self, host: str, look: Callable[[], Reports], metrics: Callable[[], str]) -> None:
        pages = {
            "/": ("text/html; charset=utf-8", lambda: page(look(), live=True)),
            "/report.json": ("application/json", lambda: news(look(), live=True)),
            "/metrics": (CONTENT_TYPE, metrics),
        }
        super().__init__(host, 0, pages)
        self.url = f"http://{host}:{self.port}/"
