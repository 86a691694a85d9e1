"""The page of a job on YARN, which its master serves during the job and writes to the results at the end."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from eps.job.display import status_text

#: Interval at which a browser reloads the page of a running job, in seconds.
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


def page_of(status: Mapping[str, Any], *, has_ended: bool = False) -> str:
    """Return a job's page; with ``has_ended`` its links are to files beside it."""
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
