"""How both programs begin and end: words to commands, errors to exit codes, interrupts.

Almost everything is imported when needed and under one ``try``: Ctrl-C at once gives no traceback either.
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
  1    the job failed, no trial of a sweep finished, or results could not be brought
  2    bad input or usage, or what one has no right to
  3    the change was refused or aborted
  4    no such job, or it, or the cluster or engine, cannot be reached
  130  interrupted
"""


def exit_code(error: Exception) -> int:
    """Return the exit code that stands for ``error``.

    Who did not answer, or is not who should, comes first: a job, a ResourceManager or a NameNode, and also where that
    is only what an error comes from, such as results that cannot be written.
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
        Of the program, and of the package that has ``cli.commands``.
    parser : callable
        Makes the parser, which sets ``command`` to ``module:function`` of that package.
    argv : sequence of str, optional
        By default those of this process.
    starting : collection of str
        Commands of which it is not plain whether they have begun something, where they are interrupted at once.
    """
    try:
        with interrupt.noted():
            return _run(name, parser, argv, starting)
    except KeyboardInterrupt as error:
        # What was interrupted may say what became of it.
        for note in getattr(error, "__notes__", ()):
            print(f"{name}: {printable(note)}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read has gone, as in `eps logs NAME | head`; the flush at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK


def _run(name: str, parser: Callable[[], ArgumentParser], argv: Sequence[str] | None, starting: Collection[str]) -> int:
    try:
        command, args = _chosen(name, parser, argv)
    except KeyboardInterrupt as error:
        words = sys.argv[1:] if argv is None else argv
        if words and words[0] in starting:
            error.add_note("interrupted: nothing was begun")
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
    """Return the function of a command, and what it is told."""
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
    """Return the message of ``error``, without the number that Python puts before that of an OSError."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def printable(text: str) -> str:
    """Return ``text`` with what a terminal would not show, or would obey, escaped; line ends stay."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text)
