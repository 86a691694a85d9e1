"""The page of a sweep that is an application: YARN's proxy shows it as the tracking URL, by relative links."""

from __future__ import annotations

from collections.abc import Callable

from eps.cluster.yarn.proxied import ProxiedServer
from hscheduler.page import LiveReports, Reports


class ApplicationPage(ProxiedServer):
    """Serves a sweep's page.

    Parameters
    ----------
    host : str
        By which YARN's proxy reaches it.
    look : callable
        Returns the reports by policy; called on a thread of a request.
    metrics : callable
        Returns what ``/metrics`` says.
    viewer : str, optional
        As of :func:`eps.cluster.yarn.proxied.viewer_of`.
    """

    def __init__(
        self, host: str, look: Callable[[], Reports], metrics: Callable[[], str], viewer: str | None = None
    ) -> None:
        super().__init__(host, LiveReports(look, metrics).pages, viewer)
