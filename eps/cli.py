"""The command line: words to commands, errors to exit codes.  L5.

Almost everything is imported when needed and under one ``try``: Ctrl-C at once gives no traceback either.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from eps import interrupt

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_REFUSED = 3
EXIT_NOT_FOUND = 4
EXIT_INTERRUPTED = 130

EXIT_CODES = """\
exit codes:
  0    done
  1    the job failed
  2    bad input or usage
  3    the change was refused or aborted
  4    no such job, or it cannot be reached
  130  interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``eps`` and return its exit code."""
    try:
        with interrupt.noted():
            return _run(argv)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read has gone, as in `eps logs NAME | head`; the flush at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK


def _run(argv: Sequence[str] | None) -> int:
    from importlib import import_module

    from eps.errors import EpsError
    from eps.parser import build_parser

    args = build_parser().parse_args(argv)
    module, _, function = args.command.partition(":")
    try:
        return int(getattr(import_module(f"eps.commands.{module}"), function)(args))
    except EpsError as error:
        print(f"eps: {printable(error_text(error))}", file=sys.stderr)
        return exit_code(error)


def exit_code(error: Exception) -> int:
    """Return the exit code that stands for ``error``."""
    from eps import errors

    if isinstance(error, errors.ConfigError | errors.DataError | errors.AuthenticationError):
        return EXIT_BAD_INPUT
    if isinstance(error, errors.PlanError):
        return EXIT_REFUSED
    if isinstance(error, errors.JobNotFoundError | errors.PeerUnavailableError | errors.DeadlineError):
        return EXIT_NOT_FOUND
    return EXIT_FAILED


def error_text(error: Exception) -> str:
    """Return the message of ``error``, without the number that Python puts before that of an OSError."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def printable(text: str) -> str:
    """Return ``text`` with what a terminal would not show, or would obey, escaped; line ends stay."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text)
