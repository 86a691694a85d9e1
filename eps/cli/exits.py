"""Run a command of ``eps`` or ``hscheduler``: find its function, map errors to exit codes, handle Ctrl-C.

Most imports are inside :func:`run_program`, so that Ctrl-C during start-up prints no traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from eps.system import interrupt

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_REFUSED = 3
EXIT_NOT_FOUND = 4
EXIT_INTERRUPTED = 130

EXIT_CODES = """\
exit codes:
  0    done
  1    the job failed, no trial of the sweep finished, or results could not be delivered
  2    bad input or usage, or permission denied
  3    the change was refused or aborted
  4    there is no such job, or the job, cluster, HDFS or Docker cannot be reached
  130  interrupted
"""


def exit_code(error: Exception) -> int:
    """Return the exit code for ``error``.

    If the error, or an error that caused it, is an unreachable job, cluster or storage, the code is
    :data:`EXIT_NOT_FOUND`.  For example: results that cannot be written because HDFS is down.
    """
    from eps import errors

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, errors.RpcError | errors.StorageAwayError | errors.ResourceAwayError):
            return EXIT_NOT_FOUND
        cause = cause.__cause__
    denied = errors.AuthenticationError | errors.StorageDeniedError
    if isinstance(error, errors.ConfigError | errors.DataError | denied):
        return EXIT_BAD_INPUT
    if isinstance(error, errors.PlanError):
        return EXIT_REFUSED
    return EXIT_FAILED


def run_program(
    name: str,
    parser: Callable[[], ArgumentParser],
    argv: Sequence[str] | None,
    starting: Collection[str] = (),
) -> int:
    """Run a command of a program and return its exit code.

    Parameters
    ----------
    name : str
        Name of the program and of its package, which has ``cli.commands``.
    parser : callable
        Creates the parser, which sets ``command`` to ``module:function`` within ``cli.commands``.
    argv : sequence of str, optional
        Defaults to the arguments of this process.
    starting : collection of str
        Commands that start something.  If interrupted before that, they print that nothing was started.
    """
    # A peer that exits is no news for the terminal; gRPC reads this when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        with interrupt.noted():
            return _run(name, parser, argv, starting)
    except KeyboardInterrupt as error:
        # The interrupted call may have noted what still runs.
        for note in getattr(error, "__notes__", ()):
            print(f"{name}: {printable(note)}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe, as in `eps logs NAME | head`; the flush at exit must not fail either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK


def _run(name: str, parser: Callable[[], ArgumentParser], argv: Sequence[str] | None, starting: Collection[str]) -> int:
    try:
        command, args = _chosen(name, parser, argv)
    except KeyboardInterrupt as error:
        words = sys.argv[1:] if argv is None else argv
        if words and words[0] in starting:
            error.add_note("interrupted: nothing was started")
        raise
    from eps.errors import EpsError

    try:
        return int(command(args))
    except EpsError as error:
        words = sys.argv[1:] if argv is None else argv
        print(f"{name}: {printable(with_flag(error_text(error), words))}", file=sys.stderr)
        return exit_code(error)


def _chosen(
    name: str, parser: Callable[[], ArgumentParser], argv: Sequence[str] | None
) -> tuple[Callable[[Namespace], int], Namespace]:
    """Return the function of the command and its parsed arguments."""
    from importlib import import_module

    args = parser().parse_args(argv)
    module, _, function = args.command.partition(":")
    return getattr(import_module(f"{name}.cli.commands.{module}"), function), args


def with_flag(message: str, words: Sequence[str]) -> str:
    """Return a message about a setting, which begins ``memory_mb is``, with its flag if that is among the words."""
    key, verb, rest = message.partition(" is ")
    flag = f"--{key.replace('_', '-')}"
    for spelling in (flag, flag.removesuffix("-s")):
        if any(word == spelling or word.startswith(f"{spelling}=") for word in words):
            return f"{spelling}{verb}{rest}"
    return message


def error_text(error: Exception) -> str:
    """Return the message of ``error``, without the error number of an OSError."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def printable(text: str) -> str:
    """Return ``text`` with unprintable characters and terminal escapes escaped; line ends stay."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text)
