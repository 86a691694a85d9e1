"""A snapshot of a sweep as a table for a terminal of any size (:class:`SweepTable`, a renderable of rich).

From top to bottom: a line about the sweep; the trials, the best first; the latest decisions.  What does not fit is
counted.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from eps.job.display import number_text
from hscheduler.core.jobs import Phase, badness, best, reason_of
from hscheduler.reports.view import Look, Row

#: Phases as a narrow terminal shows them.
_SHORT = {Phase.EARLY_FEEDBACK: "early"}
#: Order of trials below the best one.
_ORDER = (
    Phase.TRAINING,
    Phase.EARLY_FEEDBACK,
    Phase.STARTING,
    Phase.RESTARTING,
    Phase.PAUSING,
    Phase.ENDING,
    Phase.PAUSED,
    Phase.FINISHED,
    Phase.KILLED,
    Phase.FAILED,
    Phase.QUEUED,
)
_STYLES = {
    Phase.FINISHED: Style(color="green"),
    Phase.FAILED: Style(color="red"),
    Phase.KILLED: Style(dim=True),
    Phase.QUEUED: Style(dim=True),
    Phase.PAUSED: Style(dim=True),
}
_PLAIN, _DIM, _BOLD = Style(), Style(dim=True), Style(bold=True)
_BEST, _CURVE = Style(color="green", bold=True), Style(color="cyan")
_GAP = "  "
#: Decisions on a tall terminal, and most lines of one.
_DECISIONS, _DECISION_LINES = 3, 2
#: Least columns for the reason of an end, or the time that is left.
_LEAST_DETAIL = 12
#: Most columns of a hyperparameter's name.
_LONGEST_NAME = 24
#: Most containers that are drawn as a mark each.
_MARKS = 8
#: Marks of a worker and of a server, steps of a sparkline, the best trial, what was cut off; then in ASCII.  No step is
#: as high as a row, which would join rows.
_GLYPHS = ("■□", "▁▂▃▄▅▆▇", "★", "…")
_ASCII_GLYPHS = ("#o", "_.-=+*#", "*", "...")


@dataclass(frozen=True)
class _Column:
    """A column of the table."""

    head: str
    #: One for each row.
    cells: Sequence[Text]
    right: bool = False
    #: Whether the heading may be cut off.
    is_cut: bool = False

    def width(self, most: int) -> int:
        """Return its width if headings that may be cut off have at most ``most`` columns."""
        head = cell_len(self.head)
        return max(self._least, min(head, most) if self.is_cut else head)

    @cached_property
    def _least(self) -> int:
        return max(cell.cell_len for cell in self.cells)

    def lines(self, most: int, cut: str) -> list[Text]:
        """Return the heading and the cells, each as wide as the column."""
        width = self.width(most)
        lines = [Text(_cut(self.head, width, cut), _DIM), *self.cells]
        for line in lines:
            line.align("right" if self.right else "left", width)
        return lines


@dataclass(frozen=True)
class _Level:
    """How much of a trial is shown."""

    #: Characters of a sparkline.
    curve: int
    #: Least columns of a hyperparameter's name.
    name: int
    #: Whether phases and headings are short.
    is_short: bool = True
    #: Whether containers are drawn as a bar, and written as numbers.
    bar: bool = False
    numbers: bool = True
    iterations: bool = True
    #: Number of hyperparameters; None: all.
    params: int | None = None


def _levels(params: int) -> Iterable[_Level]:
    """Yield what to show, from everything to the trial with its metric."""
    yield _Level(16, 12, is_short=False, bar=True)
    yield _Level(8, 12, is_short=False, bar=True)
    yield _Level(8, 10, bar=True)
    yield _Level(8, 8, bar=True, numbers=False)
    yield _Level(5, 8, bar=True, numbers=False)
    yield _Level(5, 8)
    for number in range(params, -1, -1):
        yield _Level(5, 8, iterations=False, params=number)
    yield _Level(0, 8, iterations=False, params=0)
    yield _Level(0, 8, numbers=False, iterations=False, params=0)


@dataclass(frozen=True)
class SweepTable:
    """A sweep as a renderable that fits the console: at most its width and height, lines are never wrapped.

    Parameters
    ----------
    look : Look
    """

    look: Look

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        height = options.height or console.height
        for line in self.lines(max(1, options.max_width), max(1, height), ascii_only=options.ascii_only):
            line.no_wrap, line.overflow = True, "crop"
            yield line

    def lines(self, width: int, height: int, *, ascii_only: bool = False) -> list[Text]:
        """Return the lines of the table: at most ``height``, none wider than ``width``."""
        glyphs = _ASCII_GLYPHS if ascii_only else _GLYPHS
        lines = [self._headline(width)]
        # Trials take precedence: a short terminal shows no decisions.
        most = _DECISIONS if height >= 16 else 1 if height >= 10 else 0
        decisions = self._decisions(width, most, glyphs[-1])
        lines += self._trials(width, height - len(lines) - len(decisions), glyphs) + decisions
        for line in lines:
            line.truncate(width)
        return lines[:height]

    def _headline(self, width: int) -> Text:
        """Return the sweep's name, policy, stopping rule, trials, best value and time, the most important that fit."""
        look = self.look
        done = sum(look.count(phase) for phase in Phase if phase.ended)
        paused = look.count(Phase.PAUSED)
        running = max(0, len(look.rows) - done - look.num_queued - paused)
        others = "".join(f", {n} {what}" for n, what in ((look.num_queued, "queued"), (paused, "paused")) if n)
        so_far = " so far" if look.best is None else ""
        counts = f"{done} of {max(look.trials, len(look.rows))} done, {running} running"
        parts = [
            (2, look.name, _BOLD),
            (4, ", ".join(filter(None, (look.policy, look.stop))), _PLAIN),
            (0, counts + others, _PLAIN),
            (1, "" if self._best is None else f"best {look.metric}{so_far} {number_text(self._best.value)}", _BEST),
            (3, clock_text(look.now_s), _PLAIN),
        ]
        shown = [part for part in parts if part[1]]
        while len(shown) > 1 and sum(len(text) + len(_GAP) for _, text, _ in shown) - len(_GAP) > width:
            shown.remove(max(shown, key=lambda part: part[0]))
        return Text(_GAP).join(Text(_printable(text), style) for _, text, style in shown)

    # ---- trials

    def _trials(self, width: int, room: int, glyphs: Sequence[str]) -> list[Text]:
        rows = self._ranked()
        if not rows or room < 2:
            return []
        shown = rows if len(rows) < room else rows[: max(1, room - 2)]
        params = self._params()
        for level in _levels(len(params)):
            columns = self._columns(shown, params[: level.params], level, glyphs)
            names = (most for most in range(_LONGEST_NAME, level.name - 1, -1) if _fit(columns, most, width))
            if (name := next(names, None)) is not None:
                break
        else:
            name = level.name
        texts = [each.lines(name, glyphs[-1]) for each in columns]
        lines = [Text(_GAP).join(cells) for cells in zip(*texts, strict=True)]
        for line, row in zip(lines[1:], shown, strict=True):
            self._add_detail(line, row, width, glyphs[-1])
        lines[0].rstrip()
        if left := Counter(row.phase for row in rows[len(shown) :]):
            told = ", ".join(f"{number} {phase}" for phase in _ORDER if (number := left[phase]))
            more = f"{left.total()} more"
            lines.append(Text(f"{more}: {told}" if len(f"{more}: {told}") <= width else more, _DIM))
        return lines

    def _ranked(self) -> list[Row]:
        """Return the rows: the best, running ones by arrival so that they keep their places, ended ones by value."""

        def key(row: Row) -> tuple[bool, int, tuple[int, float], float]:
            worth = (0, 0.0) if not row.phase.ended else (2, 0.0) if row.value is None else self._badness(row.value)
            return not self._is_best(row), _ORDER.index(row.phase), worth, row.arrived_s

        return sorted(self.look.rows, key=key)

    @cached_property
    def _best(self) -> Row | None:
        """The best finished trial; before any has finished, the best that runs."""
        running = [row for row in self.look.rows if row.phase.runs]
        first = best([row.value for row in running], self.look.direction)
        return self.look.best if self.look.best is not None or first is None else running[first]

    def _is_best(self, row: Row) -> bool:
        return self._best is not None and row.job_id == self._best.job_id

    def _badness(self, value: float) -> tuple[int, float]:
        return badness(value, self.look.direction)

    def _params(self) -> list[str]:
        """Return the hyperparameters in which trials differ; those of a single trial."""
        points = [row.point for row in self.look.rows if row.point]
        names = list(dict.fromkeys(name for point in points for name in point))
        return [name for name in names if len(points) == 1 or len({repr(point.get(name)) for point in points}) > 1]

    def _columns(
        self, rows: Sequence[Row], params: Sequence[str], level: _Level, glyphs: Sequence[str]
    ) -> list[_Column]:
        marks, steps, star, _ = glyphs

        def column(
            head: str, cell: Callable[[Row], str | Text], *, right: bool = False, is_cut: bool = False
        ) -> _Column:
            cells = [cell(row) for row in rows]
            styled = [
                each if isinstance(each, Text) else Text(each, self._style(row))
                for each, row in zip(cells, rows, strict=True)
            ]
            return _Column(_printable(head), styled, right, is_cut)

        found = [column("trial", lambda row: _printable(row.job_id) + (f" {star}" if self._is_best(row) else ""))]
        found += [column(name, partial(_value_text, name=name), right=True, is_cut=True) for name in params]
        found.append(column(self.look.metric, lambda row: number_text(row.value), right=True))
        if level.curve and any(len(row.curve) > 1 for row in rows):
            found.append(
                column(
                    "", lambda row: Text(sparkline(row.curve, level.curve, steps), _DIM if row.phase.ended else _CURVE)
                )
            )
        most = max(row.workers + row.servers for row in rows)
        if level.bar or level.numbers:
            bar = marks if level.bar else ""
            numbers = level.numbers or most > _MARKS
            head = "size" if level.is_short else "containers"
            found.append(column(head, lambda row: _containers_text(row, bar, most, numbers=numbers)))
        if level.iterations:
            found.append(column("done" if level.is_short else "iterations", _iterations_text, right=True))
        phases = _SHORT if level.is_short else {}
        return [*found, column("phase", lambda row: phases.get(row.phase, str(row.phase)))]

    def _style(self, row: Row) -> Style:
        return _BEST if self._is_best(row) else _STYLES.get(row.phase, _PLAIN)

    def _add_detail(self, line: Text, row: Row, width: int, cut: str) -> None:
        """Add to the phase when a trial will have finished, or why it waits or ended early, if there is room."""
        line.rstrip()
        room = width - line.cell_len - len(": ")
        if row.eta_s is not None:
            detail = f", {clock_text(row.eta_s)} left"
        elif row.why and (row.phase in (Phase.FAILED, Phase.KILLED, Phase.QUEUED)) and room >= _LEAST_DETAIL:
            detail = ": " + _in_words(reason_of(row.job_id, _printable(row.why)), room, cut)
        else:
            return
        if line.cell_len + len(detail) <= width:
            line.append(detail, _DIM)

    # ---- decisions

    def _decisions(self, width: int, most: int, cut: str) -> list[Text]:
        """Return a blank line and the latest decisions, the latest last."""
        if not self.look.decisions or most < 1:
            return []
        lines = [Text("")]
        for at_s, sentence in self.look.decisions[-most:]:
            at = f"{clock_text(at_s):>7}  "
            told = textwrap.wrap(
                _printable(sentence),
                max(20, width - len(at)),
                max_lines=_DECISION_LINES,
                placeholder=f" {cut}",
                break_on_hyphens=False,
            )
            for number, part in enumerate(told):
                lines.append(Text.assemble((at if number == 0 else " " * len(at), _DIM), part))
        return lines


def sparkline(values: Sequence[float], width: int, steps: str = _GLYPHS[1]) -> str:
    """Return a series as at most ``width`` characters, from its smallest value to its largest.

    The first quarter of a long series does not set the range: most curves start far from where they end.

    Parameters
    ----------
    values : sequence of float
        NaN and infinite values are left out.
    width : int
    steps : str
        Characters from low to high.
    """
    known = [value for value in values if abs(value) < float("inf")]
    number = min(width, len(known))
    if number < 2:
        return ""
    parts = [known[k * len(known) // number : (k + 1) * len(known) // number] for k in range(number)]
    means = [sum(part) / len(part) for part in parts]
    low, high = min(means[number // 4 :]), max(means[number // 4 :])
    scale = (len(steps) - 1) / (high - low) if high > low else 0.0
    return "".join(steps[round((min(high, max(low, mean)) - low) * scale)] for mean in means)


def _fit(columns: Sequence[_Column], name: int, width: int) -> bool:
    return sum(column.width(name) for column in columns) + len(_GAP) * (len(columns) - 1) <= width


def clock_text(seconds: float) -> str:
    """Return a time as ``0:07``, ``12:34`` or ``1:02:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _containers_text(row: Row, marks: str, most: int, *, numbers: bool) -> str:
    """Return the containers of a trial: a mark for each (for several, if trials have many), and their numbers."""
    each = max(1, -(-most // _MARKS))
    counts = (row.workers, row.servers)
    bar = "".join(mark * -(-number // each) for mark, number in zip(marks, counts, strict=False))
    told = "+".join(str(number) for number in counts if number) if numbers else ""
    return f"{bar} {told}".strip()


def _iterations_text(row: Row) -> str:
    if not row.iterations:
        return str(row.iteration or "")
    return f"{row.iteration}/{row.iterations}" if row.iteration else ""


def _value_text(row: Row, name: str) -> str:
    value = row.point.get(name, "-")
    return f"{value:.4g}" if isinstance(value, float) else _printable(str(value))


def _in_words(text: str, width: int, cut: str) -> str:
    """Return a text, cut between two words if it is too long."""
    return textwrap.shorten(text, width, placeholder=f" {cut}")


def _cut(text: str, width: int, cut: str) -> str:
    return text if len(text) <= width else text[: width - len(cut)] + cut


def _printable(text: str) -> str:
    """Return a text without control characters, which could move the cursor."""
    return "".join(c if c.isprintable() else "?" for c in text)
