"""Read how an application on YARN ended, from its master's file or from YARN's diagnostics.  Pure."""

from __future__ import annotations

import json
import re

from eps.cluster.yarn.advice import CHECK_FILES, CHECK_MEMORY, CHECK_PYTHON, CHECK_VIRTUAL
from eps.cluster.yarn.exit_status import NEVER_STARTED, OUT_OF_MEMORY, OUT_OF_VIRTUAL_MEMORY, signalled
from eps.cluster.yarn.types import ApplicationReport
from eps.errors import StorageError
from eps.hadoop.errors import first_line

#: Beginning of the line in which an application master gives the reason of its end; YARN's diagnostics quote it.
REASON_PREFIX = "eps: "
#: Exit code and last output of a failed process in YARN's diagnostics.
_EXIT_CODE = re.compile(r"exited with\s+exitCode: (-?\d+)")
_STDERR = re.compile(r"Last \d+ bytes of stderr :\s*\n(.*?)(?:\n\s*\n|\Z)", re.DOTALL)
#: A shell's exit codes for a command that cannot be run, and Python's message for a missing package.
_NO_COMMAND, _NO_MODULE = ("126", "127"), "No module named"
#: Begins a node's explanation of a container that it could not start, or has killed.
_DIAGNOSTICS = re.compile(r"Diagnostics: (?:\[[^\]\n]*\])?")
#: Begin the rest: command lines of all processes, or YARN's own advice.
_MORE = ("Dump of the process-tree", "For more detailed output")
#: Lines of Java stack traces without information: frames, and exceptions without a message.
_STACK = re.compile(r"at |\.\.\. |(Caused by: )?([a-z][\w$]*\.)+[A-Z][\w$]*$")
#: Log lines of our processes of level error or critical (:func:`eps.system.logs.set_up_logging`).
_LOGGED = re.compile(r"[\d:.]{8,} [EC] [\w.]+: (?:M )?(\S.*)")
#: Exit code of a container that its node failed to start, or killed -> what happened, and what to do.
_BY_NODE = {
    NEVER_STARTED: ("could not be started by its node", CHECK_FILES),
    OUT_OF_MEMORY: ("exceeded its memory limit", CHECK_MEMORY),
    OUT_OF_VIRTUAL_MEMORY: ("exceeded its limit of virtual memory", CHECK_VIRTUAL),
}


def parse_outcome(content: bytes, where: str) -> tuple[str, str, int]:
    """Return (state, reason, exit code) from the file in which a master has noted how its application ended.

    Parameters
    ----------
    content : bytes
    where : str
        Name of the file, for messages.

    Raises
    ------
    StorageError
        The file is damaged.
    """
    try:
        found = json.loads(content)
        return str(found["state"]), str(found["reason"]), int(found["exit_code"])
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{where} does not say how the application ended: {error!r}") from None


def outcome(report: ApplicationReport, stop_reason: str = "") -> tuple[str, str, int]:
    """Return (state, reason, exit code) of an application that has ended, from YARN's report."""
    said = cause(report.diagnostics)
    if report.state == "FINISHED" and report.final_status == "SUCCEEDED":
        return "finished", said, 0
    if report.state == "KILLED" or report.final_status == "KILLED":
        return "killed", stop_reason or said or "YARN killed the application", 1
    return "failed", said or "the application master exited without a reason: see the container's log", 1


def cause(diagnostics: str) -> str:
    """Return why an application ended, from YARN's diagnostics.

    The first of these that is there:

    1. the last reason that our own process printed;
    2. the node's explanation, if the node could not start the container or it exceeded its memory limit;
    3. the signal that ended the process;
    4. the last error that our process logged;
    5. the last line of stderr outside of Java's stack traces;
    6. all diagnostics, in one line.
    """
    lines = [line.strip() for line in diagnostics.splitlines() if line.strip()]
    ours = [line.removeprefix(REASON_PREFIX) for line in lines if line.startswith(REASON_PREFIX)]
    if ours:
        return f"its application master could not continue: {ours[-1]}"
    code, stderr = _EXIT_CODE.search(diagnostics), _STDERR.search(diagnostics)
    if code is not None and int(code[1]) in _BY_NODE and (why := _node_reason(diagnostics)):
        what, hint = _BY_NODE[int(code[1])]
        return f"its application master {what}: {why}; {hint}"
    written = _stderr_lines(stderr[1]) if stderr is not None else []
    last = written[-1] if written else ""
    if code is not None and (signal := signalled(int(code[1]), diagnostics)):
        return f"its application master {signal}" + (f": {last}" if last else "")
    if code is None or not last:
        return " ".join(lines)
    # A process that no signal ended has logged why.
    last = next((match[1] for line in reversed(written) if (match := _LOGGED.fullmatch(line))), last)
    hint = f"; {CHECK_PYTHON}" if code[1] in _NO_COMMAND or _NO_MODULE in last else ""
    return f"its application master ended with exit code {code[1]}: {last}{hint}"


def _stderr_lines(stderr: str) -> list[str]:
    """Return the lines of a process's stderr, without Java's stack traces if there are other lines."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return [line for line in lines if not _STACK.match(line)] or lines


def _node_reason(diagnostics: str) -> str:
    """Return a node's explanation of a container that it could not start, or has killed; empty if it has none."""
    said: list[str] = []
    for line in _DIAGNOSTICS.split(diagnostics, maxsplit=1)[-1].splitlines():
        if line.strip().startswith(_MORE):
            break
        words = "" if _STACK.match(line.strip()) else first_line(line).rstrip(":. ")
        if words and words not in said:
            said.append(words)
    return "; ".join(said)
