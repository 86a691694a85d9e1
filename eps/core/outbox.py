"""What a job says in one step, and the orders that it repeats until they have an effect.  Pure.  L0."""

from __future__ import annotations

from collections.abc import Iterable

from eps.core import messages as m
from eps.core.events import Command, Send, noted, synced
from eps.core.repeats import Repeats
from eps.core.types import MemberId


class Outbox:
    """The commands of the step that is being taken, in order."""

    def __init__(self) -> None:
        #: The time of the step.
        self.now_s = 0.0
        self._commands: list[Command] = []
        self._repeats = Repeats()

    def begin(self, now_s: float) -> None:
        """Begin a step."""
        self.now_s, self._commands = now_s, []

    def take(self) -> list[Command]:
        """Return the commands of the step, which has ended."""
        commands, self._commands = self._commands, []
        for command in commands:
            if isinstance(command, Send):
                self._repeats.note(command.to, command.order, self.now_s)
        return commands

    def say(self, command: Command) -> None:
        """Append one command."""
        self._commands.append(command)

    def add(self, commands: Iterable[Command]) -> None:
        """Append commands."""
        self._commands += commands

    def send(self, orders: Iterable[tuple[MemberId, m.Order]]) -> None:
        """Send orders."""
        self._commands += [Send(to, order) for to, order in orders]

    def send_due(self, outstanding: list[tuple[MemberId, m.Order]]) -> None:
        """Send those orders again that have had no effect for long."""
        self.send(self._repeats.due(outstanding, self.now_s))

    def forget(self, name: MemberId | None = None) -> None:
        """Forget what was sent to a member that connects again; or to all, where another master sent it."""
        self._repeats.reset(name)

    def note(self, kind: str, **record: object) -> None:
        """Append a record to the journal."""
        self._commands.append(noted(kind, self.now_s, **record))

    def sync(self, kind: str, **record: object) -> None:
        """Append a record to the journal that is on disk before the next command is executed."""
        self._commands.append(synced(kind, self.now_s, **record))
