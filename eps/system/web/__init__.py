"""Self-contained HTML documents: one look for all pages of EPS and H-scheduler, with charts by uPlot.

A document holds its style, its scripts and its data; it loads nothing.  Its policy (``Content-Security-Policy``) makes
browsers enforce that, also in a file that is opened from a disk.

uPlot 1.6.32 (``uplot.js``, ``uplot.css``) is under the MIT licence in ``uplot.LICENSE``.
"""

from __future__ import annotations

import html
import json
import math
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

#: Seconds for which a server waits until an open page has seen the end; the page polls every one to four seconds.
FAREWELL_S = 6.0
_DOCUMENT = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{styles}
</style>
{body}
<script id="data" type="application/json">{data}</script>
<script>
"use strict";
{scripts}
</script>
</html>
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


class Farewell:
    """Whether an open page, which polls every second, has seen the end of what it shows."""

    def __init__(self) -> None:
        #: When an open page last polled, on the monotonic clock.
        self._polled_s = -math.inf
        self._seen = threading.Event()

    def note(self, live: bool, *, is_poll: bool = False) -> None:
        """Note that a page was sent its data, which were final unless ``live``."""
        if is_poll:
            self._polled_s = time.monotonic()
        if not live:
            self._seen.set()

    def wait(self) -> None:
        """Wait up to :data:`FAREWELL_S` until an open page has seen the end; return at once if none is open."""
        if time.monotonic() - self._polled_s < FAREWELL_S:
            self._seen.wait(FAREWELL_S)


def drawn(number: int, measured: Sequence[int], most: int) -> list[int]:
    """Return which of ``number`` entries a chart draws: evenly spaced ones, and measured ones, both with the latest.

    Parameters
    ----------
    number : int
    measured : sequence of int, ascending
        Entries with values that the others lack.  They take at most half of ``most``.
    most : int
        Most entries to draw; all are drawn if there are no more.
    """
    if number <= most:
        return list(range(number))
    kept = _spaced(measured, most // 2)
    return sorted({*kept, *_spaced(range(number), most - len(kept))})


def _spaced(entries: Sequence[int], most: int) -> Sequence[int]:
    return entries[:: -max(1, math.ceil(len(entries) / most))]


def asset(package: str, name: str) -> str:
    """Return a file of a package as text."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def document(title: str, body: str, data: str, *, styles: Sequence[str], scripts: Sequence[str], live: bool) -> str:
    """Return an HTML document.

    Parameters
    ----------
    title : str
    body : str
        Markup of the document, without its scripts.
    data : str
        Of :func:`as_json`; scripts find it as ``DATA``.
    styles, scripts : sequence of str
        Added to the common ones, in this order.
    live : bool
        Whether its scripts may connect to the server that it came from.
    """
    common = __name__
    return _DOCUMENT.format(
        policy=_POLICY + ("; connect-src 'self'" if live else ""),
        title=html.escape(title),
        styles="\n".join([asset(common, "uplot.css"), asset(common, "base.css"), *styles]),
        body=body,
        # Only "<" can end the script element or begin a comment in it.
        data=data.replace("<", "\\u003c"),
        # Every copy of uPlot has its licence.
        scripts="\n".join(
            [f"/* {asset(common, 'uplot.LICENSE')} */", asset(common, "uplot.js"), asset(common, "base.js"), *scripts]
        ),
    )


def as_json(value: Any) -> str:
    """Return a value as compact JSON; numbers that are not finite become null, which JavaScript can read."""
    return json.dumps(_finite(value), allow_nan=False, default=str, separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
