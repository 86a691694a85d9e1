"""The command line of EPS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eps.cli.exits import run_program

if TYPE_CHECKING:
    from argparse import ArgumentParser

#: Commands that start a job; if interrupted before it exists, they say so.
STARTING = ("run", "submit", "resume")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``eps`` and return its exit code."""
    return run_program("eps", _parser, argv, STARTING)


def _parser() -> ArgumentParser:
    # Imported here, where run_program handles Ctrl-C.
    from eps.cli.parser import build_parser

    return build_parser()
