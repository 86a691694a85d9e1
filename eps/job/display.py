"""Show a job: pure functions from status and report to text, and two displays that write while it runs."""

from __future__ import annotations

import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol, TextIO

from eps.cluster.docker.container import CHECK_IMAGE
from eps.cluster.yarn.advice import CHECK_PYTHON
from eps.core.evictions import TAKEN_AWAY
from eps.core.reconfig import Operation, Phase
from eps.core.recovery import LossOutcome
from eps.core.tiers import ServerTier
from eps.core.types import Address
from eps.job.status import UNREACHABLE, WAITING_STATES, checkpoints_of, without_figures

Status = Mapping[str, Any]

#: Metrics, the most important first; the progress line shows the first that a job has.
METRIC_ORDER = ("accuracy", "rmse", "f1", "auc", "mae", "r2", "precision", "recall", "loss")
PLAIN_INTERVAL_S = 1.0
#: Waits of a change that are longer than this are shown.
LONG_S = 1.0
#: States of a job that has not ended.
LIVE_STATES = ("starting", "running", "exporting")
#: In these states a job may still request missing members.
_REQUESTING_STATES = ("starting", "running")
#: States of a job that ended before it finished.
STOPPED_STATES = ("failed", "killed")
#: Purpose of a change that the job itself requests -> end of its title; drains and followers have their own titles.
_PURPOSES = {"size": " to reach the requested size"}
_BAR_CELLS = 20


class Display(Protocol):
    """Shows the progress of a job."""

    def show(self, status: Status) -> None:
        """Show a new status."""

    def close(self) -> None:
        """Leave the terminal at the beginning of a line."""


def bytes_text(size_bytes: float) -> str:
    """Return a readable size: ``3.2 MB``."""
    size, units = float(size_bytes), ["B", "kB", "MB", "GB", "TB"]
    while size >= 999.5 and len(units) > 1:
        size /= 1000.0
        units.pop(0)
    return f"{size:.0f} B" if units[0] == "B" else f"{size:.3g} {units[0]}"


def seconds_text(seconds: float) -> str:
    """Return a readable duration: ``850 us``, ``41.2 ms``, ``12.3 s``, ``4 min 05 s``."""
    if seconds < 0.0009995:
        return f"{seconds * 1e6:.0f} us" if seconds > 0 else "0"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def number_text(value: Any) -> str:
    """Return a loss or metric with its significant digits; a dash for None."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    return f"{value:.4f}" if 0.001 <= abs(value) < 1000 or value == 0 else f"{value:.4g}"


def ordered_metrics(metrics: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return metrics, the most important first."""
    rank = {name: i for i, name in enumerate(METRIC_ORDER)}
    return sorted(metrics.items(), key=lambda item: (rank.get(item[0], len(rank)), item[0]))


def change_title(change: Mapping[str, Any]) -> str:
    """Return the title of a change: ``plan 2 add-workers=2``, with the purpose if the job itself requested it."""
    if change["operation"] == Operation.FOLLOW:
        return f"plan {change['plan_id']} followers for partitions without one"
    if change["operation"] == Operation.DRAIN:
        return f"plan {change['plan_id']} drain {change['asked']} before eviction"
    what_for = _PURPOSES.get(str(change.get("purpose")), "")
    return f"plan {change['plan_id']} {asked_text(change)}{what_for}"


def asked_text(change: Mapping[str, Any]) -> str:
    """Return a change in the format of ``--at``: ``add-workers=2``, ``workers=+2,servers=-1``; or ``followers``."""
    if change["operation"] == Operation.FOLLOW:
        return "followers"
    if change["operation"] == Operation.TIERS and not change["asked"]:
        return "tiers"
    return str(change["text"])


def phases_in_order(change: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return (phase, seconds since the request) of a change; several phases may have the same time."""
    rank = {str(phase): i for i, phase in enumerate(Phase)}
    return sorted(change["seconds"].items(), key=lambda item: (item[1], rank.get(item[0], len(rank))))


def phase_texts(change: Mapping[str, Any]) -> dict[str, str]:
    """Return phase -> ``prepared +12 ms``, the time since the previous phase."""
    texts, before_s = {}, 0.0
    for phase, at_s in phases_in_order(change):
        texts[phase] = phase if phase == "queued" else f"{phase} +{seconds_text(max(0.0, at_s - before_s))}"
        before_s = at_s
    return texts


def change_outcome(change: Mapping[str, Any]) -> str:
    """Return the outcome of a change, or its phase."""
    if change["phase"] == "aborted":
        return f"aborted: {change['reason'] or 'no reason given'}"
    if change["phase"] != "released":
        return str(change["phase"])
    total_s = max(change["seconds"].values(), default=0.0)
    who = "; ".join(
        f"{verb} {', '.join(change[key])}" for verb, key in (("added", "added"), ("removed", "removed")) if change[key]
    )
    who = f"{who} " if who else ""
    return (
        f"{who}from clock {change['committed_clock']} in {seconds_text(total_s)}; "
        f"moved {bytes_text(change['bytes_moved'])}, pause {seconds_text(change['pause_s'])}, "
        f"delay {seconds_text(change['slowdown_s'])}{'' if change.get('settled', True) else ' so far'}"
    )


def waits_text(change: Mapping[str, Any]) -> str:
    """Return what a change has been waiting for longer than :data:`LONG_S` before its start; else empty."""
    if change["phase"] not in (Phase.QUEUED, Phase.PROPOSED) or change.get("waited_s", 0.0) < LONG_S:
        return ""
    return f"waits for {change['waits_for']}" if change.get("waits_for") else ""


class ChangeNews:
    """Turns repeated statuses into lines, each fact once.

    Parameters
    ----------
    with_phases : bool
        Also tell the phases of changes, not only their outcome.
    """

    def __init__(self, *, with_phases: bool = False) -> None:
        self._with_phases = with_phases
        self._told: dict[int, set[str]] = {}
        self._troubles: dict[str, str] = {}
        self._back: set[str] = set()
        self._stage = 0
        self._away = False

    def all_of(self, status: Status) -> list[str]:
        """Return all new lines of a status."""
        return [
            *self.stage(status),
            *self.lines(changes_of(status)),
            *self.went_back(status),
            *self.troubles(status),
        ]

    def stage(self, status: Status) -> list[str]:
        """Return a line with the reason if a job on two tiers is in another stage than before."""
        tiers = status.get("tiers", {})
        stage = tiers.get("stage") or 0
        if stage in (0, self._stage):
            return []
        self._stage = stage
        since = f"from clock {max(0, tiers['stages'][-1]['clock'])}"
        return [f"{status['name']}: stage {stage} {since}: {tiers['reason']}"]

    def went_back(self, status: Status) -> list[str]:
        """Return a line for each new rollback to a checkpoint or to the seed, with its reason."""
        texts = [_went_back_text(back) for back in status.get("went_back", ())]
        fresh = [text for text in texts if text not in self._back]
        self._back.update(fresh)
        return [f"{status['name']}: {text}" for text in fresh]

    def troubles(self, status: Status) -> list[str]:
        """Return a line for each trouble that is new or has a new reason, and if the cluster answers again."""
        before, self._troubles = self._troubles, troubles_of(status)
        told = {title: without_figures(why) for title, why in before.items()}
        was_away, self._away = self._away, status["state"] == UNREACHABLE
        back = [f"{status['name']}: its cluster answers again"] if was_away and status["state"] in LIVE_STATES else []
        return back + [
            f"{title}: {why}" for title, why in self._troubles.items() if told.get(title) != without_figures(why)
        ]

    def lines(self, changes: Iterable[Mapping[str, Any]]) -> list[str]:
        """Return a line for each change that waits long or is over; with phases also if it has new ones."""
        lines = []
        for change in changes:
            told = self._told.setdefault(int(change["plan_id"]), set())
            fresh = [text for phase, text in phase_texts(change).items() if phase not in told]
            told.update(change["seconds"])
            waits_for = waits_text(change)
            if waits_for and waits_for not in told and not fresh:
                told.add(waits_for)
                lines.append(f"{change_title(change)}: {waits_for}")
            is_over = change["phase"] in ("released", "aborted")
            if fresh and (self._with_phases or is_over):
                told_of = [", ".join(fresh)] if self._with_phases else []
                told_of += [change_outcome(change)] if is_over else []
                lines.append(f"{change_title(change)}: {' | '.join(told_of)}")
        return lines


def how_to_resume(name: str, reason: str) -> str:
    """Return how to continue a job that ended before it finished, depending on the reason."""
    python = " --python PATH" if CHECK_PYTHON in reason else ""
    # A resumed job uses the same image.
    image = "after fixing its image, " if CHECK_IMAGE in reason else ""
    return f"{image}to continue it from its latest checkpoint, else from its seed: eps resume {name}{python}"


def _went_back_text(back: Mapping[str, Any]) -> str:
    start = "a checkpoint" if back["to_clock"] else "its seed"
    if back.get("start") == "cut":
        start = "which the BackupPSs have"
    # Only servers hold parameters.
    lost = {name: back["lost"][name] for name in back.get("servers", ())} or back["lost"]
    who = ", ".join(f"{name} ({why})" for name, why in lost.items())
    why = "; ".join(filter(None, (f"its parameters were lost with {who}" if who else "", back["unreadable"])))
    return f"rolled back from clock {back['clock']} to clock {back['to_clock']}, {start}: {why}"


def loss_texts(status: Mapping[str, Any]) -> list[str]:
    """Return a line for each lost member and unreadable checkpoint, and one for lost job masters."""
    # What a machine or a tier takes with it is one line.
    together: dict[tuple[str, int, str], list[str]] = {}
    for loss in status.get("losses", ()):
        what = _loss_outcome(loss, is_live=status["state"] in LIVE_STATES)
        together.setdefault((loss["reason"], loss["clock"], what), []).append(loss["name"])
    lines = []
    for (reason, clock, what), names in together.items():
        # The clock is -1 before the first iteration.
        when = f"at clock {clock}" if clock >= 0 else f"before {'its' if len(names) == 1 else 'their'} first iteration"
        # At the start the next container of a member has its name.
        lines.append(f"lost {', '.join(dict.fromkeys(names))} ({reason}) {when}; {what}")
    lines += [_went_back_text(back) for back in status.get("went_back", ()) if back["unreadable"]]
    restarts = int(status.get("generation", 1)) - 1
    often = "once" if restarts == 1 else f"{restarts} times"
    return lines + ([f"the job master restarted {often}"] if restarts else [])


def _loss_outcome(loss: Mapping[str, Any], *, is_live: bool) -> str:
    if loss["back_to_clock"] is not None:
        return f"rolled back to clock {loss['back_to_clock']}"
    if loss.get("outcome") == LossOutcome.OPEN:
        return "not taken over yet" if is_live else "not taken over"
    return "replacement requested" if loss.get("outcome") == LossOutcome.REPLACED else "others took over"


def warned_texts(status: Status) -> list[str]:
    """Return a line for each member whose container will be evicted."""
    lines = []
    for member in status["members"]:
        in_s, who = member.get("evicted_in_s"), f"{member['name']} ({member.get('container', '')})"
        because = member.get("evicted_because") or TAKEN_AWAY
        why = "" if because == TAKEN_AWAY else f": it {because}"
        if in_s is not None and in_s >= 0:
            lines.append(f"{who} will be evicted in {seconds_text(in_s)}{why}")
        elif in_s is not None:
            lines.append(f"{who} was due for eviction {seconds_text(-in_s)} ago{why}")
    return lines


def evictions_text(status: Mapping[str, Any]) -> str:
    """Return the number of announced evictions and their outcomes; empty for none."""
    found = status.get("evictions") or {}
    if not found.get("asked"):
        return ""
    named = ("drained", "drained in time"), ("late", "drained late"), ("lost", "lost"), ("withdrawn", "not in use")
    parts = [f"{found[key]} {words}" for key, words in (*named, ("warned", "still there")) if found[key]]
    reasons = dict.fromkeys(each["reason"] for each in found.get("members", ()) if each["reason"] != TAKEN_AWAY)
    latest = f"; the latest {list(reasons)[-1]}" if reasons else ""
    longest_s = max(found["drain_s"].values(), default=0.0)
    took = f"; the longest drain took {seconds_text(longest_s)}" if found["drain_s"] else ""
    given = sum(found.get("given", {}).values()) if status["state"] in _REQUESTING_STATES else 0
    missing = f"; {given} not requested again yet: others need that capacity" if given else ""
    return f"{found['asked']} announced: {', '.join(parts)}{took}{latest}{missing}"


def _members_text(counts: Mapping[str, int]) -> str:
    """Return the number of members of each role: ``2 workers and 1 server``; empty for none."""
    return " and ".join(f"{n} {role}{'' if n == 1 else 's'}" for role, n in counts.items() if n)


def changes_of(status: Status) -> list[Mapping[str, Any]]:
    """Return all changes of a status, ended ones first."""
    live = [status["plan"]] if status["plan"] else []
    return [*status.get("changes", ()), *live, *status["queued"]]


def _clock_text(status: Status, of: str = "/") -> str:
    """Return the number of complete clocks, with the total if it is known."""
    return f"{status['clock']}{of}{status['iterations']}" if status["iterations"] else str(status["clock"])


def progress_line(status: Status, width: int = 0) -> str:
    """Return a job's progress in one line for a terminal, cut to ``width`` columns unless that is 0."""
    if status["state"] in WAITING_STATES and status["state"] != "starting":
        line = plain_line(status)
        return line[:width] if width else line
    if status["state"] == "starting":
        sizes = [(status[f"{role}s"], role) for role in ("worker", "server")]
        shown = [f"{number} {role}{'' if number == 1 else 's'}" for number, role in sizes]
        line = f"{status['name']}: starting {' and '.join(shown)}"
        if not status["workers"]:
            line = f"{status['name']}: starting"
        if status.get("reason"):
            line += f": {status['reason']}"
        return line[:width] if width else line
    total = max(1, status["iterations"])
    full = min(_BAR_CELLS, _BAR_CELLS * status["clock"] // total)
    parts = [f"[{'#' * full}{'.' * (_BAR_CELLS - full)}] {_clock_text(status)}"]
    parts.append(f"loss {number_text(status['loss'])}")
    parts += [f"{name} {number_text(value)}" for name, value in ordered_metrics(status["metrics"])[:1]]
    parts.append(f"{status['workers']}w {status['servers']}s v{status['membership_version']}")
    parts += stage_parts(status)
    if status["plan"]:
        waits = waits_text(status["plan"])
        parts.append(f"{asked_text(status['plan'])} {waits or status['plan']['phase']}")
    if status["queued"]:
        parts.append(f"{len(status['queued'])} queued")
    if status["state"] != "running":
        parts.append(str(status["state"]))
    elif status["eta_s"]:
        parts.append(f"ETA {seconds_text(status['eta_s'])}")
    parts += troubles_of(status)
    line = "  ".join(parts)
    return line[:width] if width else line


def _smaller_text(status: Status) -> str:
    """Return which members a job still lacks since its start; empty if it lacks none, or requests none any more."""
    lacks = _members_text(status.get("began_without", {})) if status["state"] in _REQUESTING_STATES else ""
    return f"{lacks} not granted in time at the start; requested again when there is idle capacity" if lacks else ""


def troubles_of(status: Status) -> dict[str, str]:
    """Return the current problems of a job: title -> reason."""
    lives = status["state"] in LIVE_STATES
    found = {
        "smaller than asked for": _smaller_text(status),
        "checkpoint waits": status.get("checkpoints", {}).get("waits") if lives else "",
        "checkpoint failed": status.get("checkpoints", {}).get("error"),
        "disk trouble": status.get("storage_error"),
        "no containers": status.get("resources_error"),
        "stands still": status.get("recovery_waits_for") if lives else "",
    }
    return {title: str(why) for title, why in found.items() if why}


def checkpoints_text(status: Status) -> str:
    """Return the numbers of complete, skipped and failed checkpoints, and the latest; empty if there were none."""
    found = checkpoints_of(status)
    if not any(found.get(key) for key in ("complete", "skipped", "failed")):
        return ""
    parts = [f"{found['complete']} complete", f"{found['skipped']} skipped", f"{found['failed']} failed"]
    if found["latest_clock"] is not None:
        parts.append(f"latest of clock {found['latest_clock']}")
    parts.append(f"{bytes_text(found['size_bytes'])} in {seconds_text(found['seconds'])}")
    return ", ".join(parts) + (f"; the last failed: {found['error']}" if found["error"] else "")


def plain_line(status: Status) -> str:
    """Return a job's progress in one line for a file or pipe, as words and values."""
    parts = [
        f"clock {_clock_text(status)}",
        f"loss {number_text(status['loss'])}",
        *(f"{name} {number_text(value)}" for name, value in ordered_metrics(status["metrics"])[:1]),
        f"workers {status['workers']}",
        f"servers {status['servers']}",
        *stage_parts(status),
    ]
    if status["plan"]:
        waits = waits_text(status["plan"])
        parts.append(f"change {asked_text(status['plan'])} {waits or status['plan']['phase']}")
    if status["state"] in WAITING_STATES:
        return f"{status['name']}: {status['state']}" + (f": {status['reason']}" if status.get("reason") else "")
    if status["state"] != "running":
        parts.append(str(status["state"]))
    elif status["eta_s"]:
        parts.append(f"eta {seconds_text(status['eta_s'])}")
    return "  ".join(parts)


class TerminalDisplay:
    """A progress line that is redrawn, with lines about changes above it."""

    def __init__(
        self, stream: TextIO, news: ChangeNews | None = None, columns: Callable[[], int] | None = None
    ) -> None:
        self._stream = stream
        self._columns = columns or (lambda: shutil.get_terminal_size().columns)
        self._news = news or ChangeNews()
        self._drawn = False

    def show(self, status: Status) -> None:
        """Redraw the line."""
        news = self._news.all_of(status)
        above = "".join(f"{line}\n" for line in news)
        # A line that fills the last column would wrap in some terminals.
        line = progress_line(status, max(20, self._columns() - 1))
        self._stream.write(f"\r\x1b[2K{above}{line}")
        self._stream.flush()
        self._drawn = True

    def close(self) -> None:
        """End the line."""
        if self._drawn:
            self._stream.write("\n")
            self._stream.flush()
            self._drawn = False


class PlainDisplay:
    """A line a second while the job advances, and lines about changes."""

    def __init__(
        self,
        stream: TextIO,
        news: ChangeNews | None = None,
        interval_s: float = PLAIN_INTERVAL_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._interval_s = interval_s
        self._now_s = now_s
        self._news = news or ChangeNews()
        self._last_s = -math.inf
        self._last = ""

    def show(self, status: Status) -> None:
        """Write the new lines."""
        for line in self._news.all_of(status):
            self._write(line)
        now_s, line = self._now_s(), plain_line(status)
        told = without_figures(line) if status["state"] in WAITING_STATES else line
        ended = status["state"] not in ("starting", "running")
        if told != self._last and (ended or now_s - self._last_s >= self._interval_s):
            self._last, self._last_s = told, now_s
            self._write(line)

    def _write(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def close(self) -> None:
        """Do nothing."""


def table(rows: Sequence[Sequence[str]], indent: str = "  ") -> str:
    """Return rows as columns; the first row is the heading."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        (indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in rows
    )


def ago_text(at_s: float) -> str:
    """Return how long ago a time (seconds of Unix time) was: ``3 min ago``, ``2 days ago``."""
    passed_s = max(0, round(time.time() - at_s))
    for unit_s, name in ((86_400, "days"), (3600, "h"), (60, "min")):
        if passed_s >= (2 if unit_s > 3600 else 1) * unit_s:
            return f"{passed_s // unit_s} {name} ago"
    return f"{passed_s} s ago"


def as_of_text(as_of_s: float) -> str:
    """Return the age of figures as of a time (seconds of Unix time; 0: unknown)."""
    if not as_of_s:
        return "last known, at an unknown time"
    return f"last known, at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(as_of_s))}"


def ways_text(ways: Mapping[str, str]) -> str:
    """Return the number of a member's connections by kind: ``2 by shm, 1 by tcp``."""
    counts = Counter(ways.values())
    return ", ".join(f"{count} by {way}" for way, count in sorted(counts.items(), key=lambda e: (-e[1], e[0]))) or "-"


def speed_texts(status: Status) -> list[str]:
    """Return a line with a job's known times; empty if none is known."""
    live = status["state"] in LIVE_STATES
    parts = [f"{seconds_text(status['iteration_s'])} per iteration"] if status["iteration_s"] else []
    if status["elapsed_s"]:
        parts.append(f"{seconds_text(status['elapsed_s'])} {'so far' if live else 'in all'}")
    if live and status["iteration_s"]:
        parts.append(f"{seconds_text(status['eta_s'])} to go")
    return [f"  {', '.join(parts)}"] if parts else []


def status_text(status: Status, *, resumable: bool = False) -> str:
    """Return the output of ``eps status``; for a ``resumable`` job also how to resume it."""
    lines = [f"{status['name']}: {status['state']}" + (f" ({status['reason']})" if status["reason"] else "")]
    if status.get("application_id"):
        lines.append(f"  on YARN: {status['application_id']}")
    if status["state"] == UNREACHABLE:
        # Show only the clock of the last known figures: others would be mistaken for current ones.
        known = status.get("as_of_s")
        return "\n".join([*lines, *([f"  {as_of_text(known)}: clock {_clock_text(status, ' of ')}"] if known else [])])
    if status.get("as_of_s") is not None:
        lines.append(f"  {as_of_text(status['as_of_s'])}:")
    # Unknown if the master has ended and left no figures here.
    version = f", membership version {status['membership_version']}" if status["membership_version"] else ""
    lines.append(f"  clock {_clock_text(status, ' of ')}{version}")
    measured = [f"train loss {number_text(status['loss'])}"] if status["loss"] is not None or version else []
    measured += [f"test {name} {number_text(value)}" for name, value in ordered_metrics(status["metrics"])]
    lines += [f"  {', '.join(measured)}"] if measured else []
    lines += speed_texts(status)
    lines += [f"  {text}" for text in tiers_texts(status)]
    if status["members"]:
        in_tiers = "tiers" in status
        title = ["CONTAINER", "TIER", "SERVES AS"] if in_tiers else []
        rows = [["MEMBER", *title, "PID", "ADDRESS", "REACHES", "HOLDS"]]
        for member in status["members"]:
            what = "splits" if member["role"] == "worker" else "partitions"
            held = f"{what} {', '.join(str(item) for item in member['holds'])}" if member["holds"] else "nothing"
            serves = member.get("server_tier") or "-"
            if serves == ServerTier.BACKUP_PS:
                held = "copies as of the consistent clock"
            # A requested member has no address yet.
            place = str(Address(member["host"], member["port"])) if member["host"] else "-"
            number = str(member.get("container", "")).removeprefix("container-").lstrip("0") or "-"
            who = [member["name"], *([number, member["tier"], serves] if in_tiers else [])]
            rows.append([*who, str(member["pid"] or "-"), place, ways_text(member["ways"]), held])
        lines.append(table(rows))
    for change in ([status["plan"]] if status["plan"] else []) + list(status["queued"]):
        waits = waits_text(change)
        lines.append(
            f"  {change_title(change)}: {', '.join([*phase_texts(change).values(), *([waits] if waits else [])])}"
        )
    lines += [f"  {text}" for text in warned_texts(status)]
    checkpoints = checkpoints_text(status)
    if checkpoints:
        lines.append(f"  checkpoints: {checkpoints}")
    if evictions_text(status):
        lines.append(f"  evictions: {evictions_text(status)}")
    lines += [f"  {title}: {why}" for title, why in troubles_of(status).items() if title != "checkpoint failed"]
    lines += [f"  {text}" for text in loss_texts(status)]
    if resumable:
        lines.append(f"  {how_to_resume(status['name'], status['reason'])}")
    live = status["state"] in LIVE_STATES
    for when, told in ((" before the job was resumed", status.get("earlier", {})), (" so far" if live else "", status)):
        if changes := told.get("changes"):
            lines.append(f"  changes{when}:")
            lines += [f"    {change_title(change)}: {change_outcome(change)}" for change in changes]
    return "\n".join(lines)


def list_text(statuses: Sequence[Status]) -> str:
    """Return the output of ``eps list`` for at least one job."""
    rows = [["NAME", "STATE", "STARTED", "CLOCK", "LOSS", "METRIC", "WORKERS", "SERVERS"]]
    for status in statuses:
        if status["state"] == UNREACHABLE:
            rows.append([status["name"], status["state"], ago_text(status["started_s"]), *"-----"])
            continue
        metrics = ordered_metrics(status["metrics"])
        # The last figures of a job whose processes were killed may be older than its first clock.
        is_unknown = status.get("as_of_s") is not None and not status["clock"]
        rows.append(
            [
                status["name"],
                status["state"],
                ago_text(status["started_s"]),
                "-" if is_unknown else _clock_text(status),
                number_text(status["loss"]),
                f"{metrics[0][0]} {number_text(metrics[0][1])}" if metrics else "-",
                str(status["workers"]),
                str(status["servers"]),
            ]
        )
    why: dict[str, list[str]] = {}
    for status in statuses:
        if status["state"] in ("unreadable", UNREACHABLE):
            # Name a cluster that does not answer once for all its jobs.
            why.setdefault(str(status["reason"]), []).append(status["name"])
    return "\n".join([table(rows, indent=""), *(f"{', '.join(names)}: {reason}" for reason, names in why.items())])


def summary_text(report: Mapping[str, Any]) -> str:
    """Return the summary that ``eps run`` prints at the end."""
    lines = [f"{report['name']}: {report['state']}" + (f" ({report['reason']})" if report.get("reason") else "")]
    seconds = report.get("iteration_seconds")
    if seconds and seconds["total"]:
        lines[0] += f" at clock {report['clock']}; {seconds_text(seconds['total'])} of training"
        lines.append(
            f"  an iteration took {seconds_text(seconds['p50'])} (median), {seconds_text(seconds['p99'])} (p99)"
        )
    metrics = report.get("metrics", {})
    if metrics.get("train_loss") is not None:
        lines.append(f"  train loss  {number_text(metrics['train_loss'])}")
    if metrics.get("test"):
        spread = metrics.get("test_std", {})
        shown = [
            f"{name} {number_text(value)}" + (f" +- {number_text(spread[name])}" if name in spread else "")
            for name, value in ordered_metrics(metrics["test"])
        ]
        lines.append(f"  test        {', '.join(shown)}")
    if report.get("model_sha256"):
        lines.append(f"  model       sha256 {report['model_sha256']}")
    ledger = report.get("ledger")
    if ledger and report["state"] == "finished":
        lines.append(
            f"  ledger      {ledger['applied']} of {ledger['expected']} applied, {ledger['lost']} lost, "
            f"{ledger['applied_twice']} applied twice, {ledger['duplicates_refused']} duplicates refused"
        )
    if stages_text(report):
        lines.append(f"  tiers       {stages_text(report)}")
    if checkpoints_text(report):
        lines.append(f"  checkpoints {checkpoints_text(report)}")
    if evictions_text(report):
        lines.append(f"  evictions   {evictions_text(report)}")
    lines += [f"  {text}" for text in loss_texts(report)]
    if report.get("changes"):
        lines.append("  changes:")
        lines.append(changes_table(report["changes"]))
        lines += [f"  {text}" for change in report["changes"] if (text := not_done_text(change))]
    return "\n".join(lines)


def not_done_text(change: Mapping[str, Any]) -> str:
    """Return why a change of ``--at`` did not happen; empty if it did."""
    if change["phase"] != "aborted" or change.get("asked_at") is None:
        return ""
    return f"--at {change['asked_at']}:{asked_text(change)} did not happen: {change['reason'] or 'no reason given'}"


def stage_parts(status: Status) -> list[str]:
    """Return stage and lag of a job on two tiers, for its progress line; in stage 1 nothing can lag."""
    tiers = status.get("tiers", {})
    stage = tiers.get("stage")
    return [f"stage {stage}", *([f"lag {tiers['lag']}"] if stage > 1 else [])] if stage else []


def tiers_texts(status: Status) -> list[str]:
    """Return stage and consistent clock of a job on two tiers, a line each; nothing for other jobs."""
    tiers = status.get("tiers", {})
    if not tiers.get("stages"):
        return []
    if status["state"] not in LIVE_STATES:
        return [f"tiers: {stages_text(status)}"]
    texts = [f"stage {tiers['stage']} (rule {tiers['rule']}): {tiers['reason']}"]
    if tiers["stage"] > 1:
        behind = f"{_lag_text(tiers, '')} behind, at most {_lag_text(tiers, 'largest_')} so far"
        texts.append(f"consistent clock {tiers['consistent_clock']}: {behind}")
        texts += [f"the lag exceeds its bound: {tiers['lag_missed']}"] if tiers["lag_missed"] else []
    return texts + ([f"{_clocks_text(tiers['rolled_back'])} computed again"] if tiers["rolled_back"] else [])


def stages_text(report: Mapping[str, Any]) -> str:
    """Return how a job on two tiers went: ``stage 2 at the end; 3 changes of stage; 12 clocks computed again``."""
    tiers = report.get("tiers", {})
    stages = [entry["stage"] for entry in tiers.get("stages", ())]
    if not stages:
        return ""
    changes = sum(before != after for before, after in pairwise(stages))
    parts = [f"stage {stages[-1]} at the end", f"{changes} change{'' if changes == 1 else 's'} of stage"]
    if tiers["largest_lag"]:
        parts.append(f"backups at most {_lag_text(tiers, 'largest_')} behind")
    return "; ".join([*parts, f"{_clocks_text(tiers['rolled_back'])} computed again"])


def _lag_text(tiers: Mapping[str, Any], which: str) -> str:
    """Return the current or the ``largest_`` lag: ``4 clocks (1.2 s)``."""
    return f"{_clocks_text(tiers[which + 'lag'])} ({seconds_text(tiers[which + 'lag_s'])})"


def _clocks_text(number: int) -> str:
    return f"{number} clock{'' if number == 1 else 's'}"


def changes_table(changes: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of changes of size, with their times and costs."""
    rows = [["CHANGE", "MEMBERS", "CLOCK", "PHASES (ms since asked)", "MOVED", "PAUSE", "DELAY"]]
    for change in changes:
        phases = (item for item in phases_in_order(change) if item[0] != "queued")
        told = " ".join(f"{phase} {at_s * 1e3:.0f}" for phase, at_s in phases)
        clock = "-" if change["committed_clock"] is None else str(change["committed_clock"])
        if change["phase"] == "aborted":
            told += f" ({change['reason'] or 'no reason given'})"
        costs = [bytes_text(change["bytes_moved"]), seconds_text(change["pause_s"]), seconds_text(change["slowdown_s"])]
        rows.append([asked_text(change), ",".join(change["names"]) or "-", clock, told, *costs])
    return table(rows, indent="    ")
