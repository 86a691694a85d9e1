"""Metrics in the text format of Prometheus.

A few lines instead of a dependency: every metric is a snapshot, and no counters are kept between requests.

Source: Prometheus documentation, "Exposition formats" (text, version 0.0.4).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Family:
    """A metric with its samples: (suffix of the name, as histograms need; labels; value)."""

    name: str
    #: ``counter``, ``gauge`` or ``histogram``.
    kind: str
    help: str
    samples: tuple[tuple[str, Mapping[str, str], float], ...]


def metric(name: str, kind: str, help: str, value: float, **labels: str) -> Family:
    """Return a metric with one sample."""
    return Family(name, kind, help, (("", labels, value),))


def text_of(families: Iterable[Family]) -> str:
    """Return metrics as text."""
    lines = []
    for family in families:
        lines.append(f"# HELP {family.name} {_escaped(family.help)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for suffix, labels, value in family.samples:
            told = ",".join(f'{key}="{_escaped(text, quote=True)}"' for key, text in labels.items())
            lines.append(f"{family.name}{suffix}{f'{{{told}}}' if told else ''} {_number(value)}")
    return "\n".join(lines) + "\n"


def _escaped(text: str, *, quote: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
