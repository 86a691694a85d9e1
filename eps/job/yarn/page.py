"""The page of one job: behind the application's tracking URL while it runs, beside its results when it has ended.

It asks for nothing but itself and its figures by relative links, as the proxy wants it, and only reads.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping
from typing import Any

from eps.cluster.yarn.proxied import ProxiedServer
from eps.job.display import status_text
from eps.master.records import job_metrics
from eps.system.metrics_text import CONTENT_TYPE
from eps.system.text_server import Text

Status = Mapping[str, Any]

REFRESH_S = 2
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
{refresh}<title>{name}: {state}</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 1.5rem auto; padding: 0 1rem; max-width: 60rem; color: #222 }}
h1 {{ font-size: 1.3rem }} meter {{ width: 100%; height: 1.2rem }}
pre {{ background: #f6f6f4; padding: .8rem; overflow-x: auto; font-size: 13px }}
@media (prefers-color-scheme: dark) {{ body {{ background: #181818; color: #ddd }} pre {{ background: #242424 }} }}
</style></head><body>
<h1>{name}: {state}</h1>
<meter min="0" max="{iterations}" value="{clock}"></meter>
<p>{clock} of {iterations} iterations</p>
<pre>{text}</pre>
<p>{links}</p>
</body></html>
"""


class JobPage(ProxiedServer):
    """Serves a job's page.

    Parameters
    ----------
    host : str
        By which YARN's proxy reaches it.
    status : callable
        Returns what ``eps status --json`` prints; called on a thread of each request.
    viewer : str, optional
        As of :func:`eps.cluster.yarn.proxied.viewer_of`.
    """

    def __init__(self, host: str, status: Callable[[], Status], viewer: str | None = None) -> None:
        pages = {
            "/": lambda: Text("text/html; charset=utf-8", page_of(status())),
            "/status.json": lambda: Text("application/json", json.dumps(status(), indent=1)),
            "/metrics": lambda: Text(CONTENT_TYPE, job_metrics(status())),
        }
        super().__init__(host, pages, viewer)


def page_of(status: Status, *, has_ended: bool = False) -> str:
    """Return the page of a job with this status; that of one which has ended lies beside its report."""
    links = ("status.json", "report.json", "master.log") if has_ended else ("status.json", "metrics")
    return _PAGE.format(
        refresh="" if has_ended else f'<meta http-equiv="refresh" content="{REFRESH_S}">',
        links=" ".join(f'<a href="{link}">{link}</a>' for link in links),
        name=html.escape(str(status["name"])),
        state=html.escape(str(status["state"])),
        clock=int(status["clock"]),
        iterations=int(status["iterations"]),
        text=html.escape(status_text(status)),
    )
