"""The command line of EPS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eps.cli.exits import run_program

if TYPE_CHECKING:
    from argparse import ArgumentParser

#: Commands that begin something.
STARTING = ("run", "submit", "resume")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``eps`` and return its exit code."""
    return run_program("eps", _parser, argv, STARTING)


def _parser() -> ArgumentParser:
    # An interrupt may come while it is imported.
    from eps.cli.parser import build_parser

    return build_parser()
