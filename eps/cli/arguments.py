"""The argument parser of ``eps`` and ``hscheduler``: one-sentence errors, hints, short and long help."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from eps.cli.exits import EXIT_BAD_INPUT
from eps.system.nearest import did_you_mean

_CHOICE = re.compile(r"invalid choice: (.+) \(choose from (.+)\)", re.DOTALL)
#: ``eps help run`` is ``eps run --help``.
_HELP = "help"


class CommandParser(argparse.ArgumentParser):
    """The parser of a program and of each of its commands; it reports an error in one sentence.

    argparse would print the usage first, with dozens of options.  It would also let the program's parser, not the
    command's, refuse a flag that the command does not have.
    """

    #: Explains why this command does not take a flag; replaces the hint at a similar flag.
    why_unknown = ""
    #: Destinations of the arguments that ``--help`` shows; empty if it shows all.
    common: frozenset[str] = frozenset()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # A new flag could make an abbreviation in a script ambiguous.
        super().__init__(*args, **{"exit_on_error": False, "allow_abbrev": False, **kwargs})
        # argparse names the function in its error: "invalid int value".
        self.register("type", int, _whole_number)
        self.register("type", float, _number)

    def show_only(self, common: Iterable[str]) -> None:
        """Limit ``--help`` to the arguments in ``common``; add ``--help-all`` for the rest."""
        self.common = frozenset(common) | {"help", "help_all"}
        self.add_argument("--help-all", action=_HelpAll, nargs=0, default=argparse.SUPPRESS, help="show all flags")

    def format_help(self) -> str:
        """Return the help, limited to :attr:`common` unless that is empty."""
        if not self.common:
            return super().format_help()
        helps = [(action, action.help) for action in self._actions]
        try:
            for action in self._actions:
                if action.dest not in self.common:
                    action.help = argparse.SUPPRESS
            return super().format_help()
        finally:
            for action, text in helps:
                action.help = text

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the words; print the help if a program with commands gets none."""
        words = sys.argv[1:] if args is None else list(args)
        commands = self._commands()
        if commands and not words:
            self.print_help(sys.stderr)
            self.exit(EXIT_BAD_INPUT)
        if commands and words[0] == _HELP:
            words = [*words[1:], "--help"]
        if commands and not words[0].startswith("-") and words[0] not in commands:
            self.error(f"unknown command {words[0]!r}{did_you_mean(words[0], commands)}")
        try:
            found, unknown = super().parse_known_args(words, namespace)
        except argparse.ArgumentError as error:
            self.error(_sentence(error))
        if unknown:
            self._refuse(unknown)
        return found, unknown

    def _commands(self) -> Sequence[str]:
        if self._subparsers is None:
            return ()
        return [name for action in self._subparsers._group_actions for name in action.choices or ()]

    def _refuse(self, unknown: list[str]) -> NoReturn:
        program, _, command = self.prog.partition(" ")
        flags = [word for word in unknown if word.startswith("-")]
        if not flags:
            self.error(f"{command or program} takes no further argument: {' '.join(unknown)}")
        why = f": {self.why_unknown}" if self.why_unknown else ""
        known = did_you_mean(flags[0].partition("=")[0], self._option_string_actions)
        self.error(f"unknown flag {', '.join(flags)}{why or known}")

    def error(self, message: str) -> NoReturn:
        """Print the error and the command that shows help; exit with :data:`EXIT_BAD_INPUT`."""
        program = self.prog.partition(" ")[0]
        self.exit(EXIT_BAD_INPUT, f"{program}: {message} (see {self.prog} --help)\n")


class _HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        assert isinstance(parser, CommandParser)
        parser.common = frozenset()
        parser.print_help()
        parser.exit()


def help_format(prog: str) -> argparse.HelpFormatter:
    """Return a formatter that does not wrap descriptions and leaves 30 columns for flags."""
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=30)


def count(text: str) -> int:
    """Return ``text`` as a whole number, at least 1.

    Raises
    ------
    ArgumentTypeError
        The text is not such a number.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"is {text!r}, but must be a whole number, at least 1")
    return int(text)


def given_name(text: str) -> str:
    """Return ``text`` unchanged.

    Raises
    ------
    ArgumentTypeError
        The text is empty.  EPS chooses a name only if the flag is omitted.
    """
    if not text:
        raise argparse.ArgumentTypeError("is '', but must not be empty: omit the flag and EPS chooses a name")
    return text


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"is {text!r}, but must be a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"is {text!r}, but must be a number") from None


def _sentence(error: argparse.ArgumentError) -> str:
    """Return an error of argparse in the form of EPS's errors: ``NAME is VALUE, but must be RULE``."""
    message = _CHOICE.sub(r"is \1, but must be one of \2", error.message)
    if error.argument_name is None:
        return message
    named = error.argument_name.partition("/")[0]
    return f"{named} {message}" if message.startswith("is ") else f"{named}: {message}"
