"""How an application on YARN ended, by its master's word or else by YARN's: what both wrote, read.

Nothing here asks anybody.
"""

from __future__ import annotations

import json
import re

from eps.cluster.yarn.advice import CHECK_FILES, CHECK_MEMORY, CHECK_PYTHON, CHECK_VIRTUAL
from eps.cluster.yarn.exit_status import NEVER_STARTED, OUT_OF_MEMORY, OUT_OF_VIRTUAL_MEMORY, signalled
from eps.cluster.yarn.types import ApplicationReport
from eps.errors import StorageError
from eps.hadoop.errors import first_line

#: How an application master begins its last word, which YARN quotes among much else.
OUR_WORD = "eps: "
#: What else of YARN's words says why it failed: the exit code, and what it wrote last.
_EXIT_CODE = re.compile(r"exited with\s+exitCode: (-?\d+)")
_STDERR = re.compile(r"Last \d+ bytes of stderr :\s*\n(.*?)(?:\n\s*\n|\Z)", re.DOTALL)
#: A shell's exit codes of a command that cannot be run, and what Python says of a package that is not there.
_NO_COMMAND, _NO_MODULE = ("126", "127"), "No module named"
#: Before what a node says of a container that it could not start, or has ended.
_DIAGNOSTICS = re.compile(r"Diagnostics: (?:\[[^\]\n]*\])?")
#: After that: all its processes with their command lines, or YARN's own advice.
_MORE = ("Dump of the process-tree", "For more detailed output")
#: Of Java's stacks between: frames, and exceptions that say nothing.
_STACK = re.compile(r"at |\.\.\. |(Caused by: )?([a-z][\w$]*\.)+[A-Z][\w$]*$")
#: What our processes log as an error, or worse (:func:`eps.system.logs.set_up_logging`).
_LOGGED = re.compile(r"[\d:.]{8,} [EC] [\w.]+: (?:M )?(\S.*)")
#: Exit code of a container that is its node's doing -> what happened, and what to do.
_BY_NODE = {
    NEVER_STARTED: ("could not be started by its node", CHECK_FILES),
    OUT_OF_MEMORY: ("took more memory than it may", CHECK_MEMORY),
    OUT_OF_VIRTUAL_MEMORY: ("took more virtual memory than it may", CHECK_VIRTUAL),
}


def word_of(content: bytes, where: str) -> tuple[str, str, int]:
    """Return how an application ended by its master's own word: state, reason, exit code.

    Parameters
    ----------
    content : bytes
    where : str
        Name of the file, for people.

    Raises
    ------
    StorageError
        It says nothing of the kind.
    """
    try:
        found = json.loads(content)
        return str(found["state"]), str(found["reason"]), int(found["exit_code"])
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{where}: does not say how the application ended: {error!r}") from None


def outcome(report: ApplicationReport, stop_reason: str = "") -> tuple[str, str, int]:
    """Return (state, reason, exit code) of an application that has ended, by YARN's word."""
    said = cause(report.diagnostics)
    if report.state == "FINISHED" and report.final_status == "SUCCEEDED":
        return "finished", said, 0
    if report.state == "KILLED" or report.final_status == "KILLED":
        return "killed", stop_reason or said or "YARN ended the application", 1
    return "failed", said or "the application master ended without a word: see the container's log", 1


def cause(diagnostics: str) -> str:
    """Return why an application ended, from all that YARN has to say about it.

    That is the last word of our own process, where YARN quotes one; else what its node says of files or
    memory; else the last error that our process logged; else the last line that a process wrote which could not
    begin, and that is none of a stack of Java's; else everything in one line.
    """
    lines = [line.strip() for line in diagnostics.splitlines() if line.strip()]
    ours = [line.removeprefix(OUR_WORD) for line in lines if line.startswith(OUR_WORD)]
    if ours:
        return f"its application master could not go on: {ours[-1]}"
    code, said = _EXIT_CODE.search(diagnostics), _STDERR.search(diagnostics)
    if code is not None and int(code[1]) in _BY_NODE and (why := _word_of_node(diagnostics)):
        what, hint = _BY_NODE[int(code[1])]
        return f"its application master {what}: {why}; {hint}"
    words = _words(said[1]) if said is not None else []
    word = words[-1] if words else ""
    if code is not None and (signal := signalled(int(code[1]), diagnostics)):
        return f"its application master {signal}" + (f": {word}" if word else "")
    if code is None or not word:
        return " ".join(lines)
    # One that was not ended by others has said why.
    word = next((match[1] for line in reversed(words) if (match := _LOGGED.fullmatch(line))), word)
    hint = f"; {CHECK_PYTHON}" if code[1] in _NO_COMMAND or _NO_MODULE in word else ""
    return f"its application master ended with exit code {code[1]}: {word}{hint}"


def _words(said: str) -> list[str]:
    """Return what a process wrote on standard error, without the lines of stacks of Java where there are others."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return [line for line in lines if not _STACK.match(line)] or lines


def _word_of_node(diagnostics: str) -> str:
    """Return what a node says of a container that it could not start, or has ended; empty where it says nothing."""
    said: list[str] = []
    for line in _DIAGNOSTICS.split(diagnostics, maxsplit=1)[-1].splitlines():
        if line.strip().startswith(_MORE):
            break
        words = "" if _STACK.match(line.strip()) else first_line(line).rstrip(":. ")
        if words and words not in said:
            said.append(words)
    return "; ".join(said)
