"""Explain the exit status of a container in a sentence.  Pure.

Source: Hadoop, ``ContainerExitStatus`` and ``ContainerExecutor.ExitCode``.
"""

from __future__ import annotations

import signal as signals

from eps.cluster.yarn.types import Completed, Grant
from eps.hadoop.errors import first_line

ABORTED = -100
DISKS_FAILED = -101
PREEMPTED = -102
OUT_OF_VIRTUAL_MEMORY = -103
OUT_OF_MEMORY = -104
KILLED_BY_MASTER = -105
KILLED_BY_RESOURCE_MANAGER = -106
KILLED_WITH_APPLICATION = -107
MADE_ROOM = -108
TOO_MUCH_LOG = -109
NEVER_STARTED = -1000
#: A restarted NodeManager did not find the container.
LOST_BY_NODE = 154

#: Exit statuses of containers that YARN took or lost; their processes are not at fault.
TAKEN = frozenset(
    {
        ABORTED,
        DISKS_FAILED,
        PREEMPTED,
        KILLED_BY_MASTER,
        KILLED_BY_RESOURCE_MANAGER,
        KILLED_WITH_APPLICATION,
        MADE_ROOM,
        LOST_BY_NODE,
    }
)
#: Exit statuses of a container that was stopped on request.
ENDED_ON_PURPOSE = frozenset({ABORTED, KILLED_BY_MASTER, 128 + signals.SIGKILL, 128 + signals.SIGTERM})
#: A node's words for its own signal, and for one from another process (``ContainerImpl``).
ON_REQUEST, OTHERS = "killed on request", "killed by external signal"
#: Longest part of the process's last line in a sentence, in characters.
MAX_LAST_LINE = 300

_SENTENCES = {
    DISKS_FAILED: "was ended because too many disks of its node {host} failed",
    PREEMPTED: "was preempted on {host}: another queue or application needed its capacity",
    OUT_OF_VIRTUAL_MEMORY: (
        "was killed on {host} because it exceeded the virtual memory that its {memory_mb} MB allow: give it more "
        "memory, or set yarn.nodemanager.vmem-check-enabled to false"
    ),
    OUT_OF_MEMORY: "was killed on {host} because it exceeded its {memory_mb} MB of memory: give it more",
    KILLED_BY_MASTER: "was stopped by the job master",
    KILLED_BY_RESOURCE_MANAGER: "was ended by the ResourceManager",
    KILLED_WITH_APPLICATION: "was ended with its application",
    MADE_ROOM: "was ended to make room for a guaranteed container on {host}: it was opportunistic",
    TOO_MUCH_LOG: "was killed because it wrote more log than its node allows",
    NEVER_STARTED: "could not be started on {host}",
    LOST_BY_NODE: "was lost when the NodeManager of {host} restarted",
}
#: Around a failed process's own words, YARN writes lines that are the same every time; and Java its stacks.
_SAME = ("at ", "... ", "Last 4096 bytes", "Error files", "[20", "Failing this attempt")
#: Statuses that YARN's diagnostics explain better.
_EXPLAINED_BY_YARN = frozenset({NEVER_STARTED, KILLED_BY_RESOURCE_MANAGER})


def exit_of(completed: Completed, grant: Grant, purpose: str = "") -> tuple[int | None, str]:
    """Return (exit code of the process or None, how the container ended as words after its name).

    Parameters
    ----------
    completed : Completed
    grant : Grant
        The grant of that container.
    purpose : str
        Why EPS ended the container, as words after its name; empty: EPS did not.
    """
    status = completed.exit_status
    if is_lost(completed):
        return None, lost_with(grant.host)
    if purpose and status in ENDED_ON_PURPOSE:
        return None, purpose
    if status == ABORTED:
        return None, _aborted(completed, grant)
    if status in _SENTENCES:
        sentence = _SENTENCES[status].format(host=grant.host, memory_mb=grant.resource.memory_mb)
        words = first_line(last_line(completed.diagnostics)) if status in _EXPLAINED_BY_YARN else ""
        return None, _with(sentence, words)
    if status < 0:
        return None, _with(f"was ended by YARN with status {status}", last_line(completed.diagnostics))
    if signal := signalled(status, completed.diagnostics, grant.host):
        return None, signal
    return status, _with(f"exited with code {status}", last_line(completed.diagnostics) if status else "")


def is_taken(completed: Completed, purpose: str = "") -> bool:
    """Return whether the cluster took or lost a container that EPS had not ended.

    Parameters
    ----------
    completed : Completed
    purpose : str
        See :func:`exit_of`.
    """
    status, said = completed.exit_status, completed.diagnostics.lower()
    if is_lost(completed):
        return True
    if purpose and status in ENDED_ON_PURPOSE:
        return False
    # A node that stops ends what it runs.
    by_node = bool(signalled(status, said)) and ON_REQUEST in said and OTHERS not in said
    return status in TAKEN or by_node


def is_lost(completed: Completed) -> bool:
    """Return whether YARN reports a container as lost with its node, also one that EPS had ended."""
    words = completed.diagnostics.lower()
    return completed.exit_status == ABORTED and "lost" in words and "node" in words


def lost_with(host: str) -> str:
    """Return, as words after its name, that a container was lost with its node."""
    return f"was lost with its node {host}"


def signalled(status: int, diagnostics: str, host: str = "") -> str:
    """Return which signal ended a process and, if known, who sent it, as words after its name; empty if none did.

    Parameters
    ----------
    status : int
        Exit status of its container.
    diagnostics : str
        The node's explanation.
    host : str, optional
    """
    try:
        name = signals.Signals(status - 128).name
    except ValueError:
        return ""
    said, at = diagnostics.lower(), f" {host}" if host else ""
    if OTHERS in said:
        return f"was ended by {name}, sent by another process on its node{at}, not by YARN"
    # A node that stops ends what it runs.
    return f"was ended by its node{at} ({name})" if ON_REQUEST in said else f"was ended by {name}"


def _aborted(completed: Completed, grant: Grant) -> str:
    if "expired" in completed.diagnostics.lower():
        return f"was released by YARN: it was not started on {grant.host} in time"
    return _with("was released by YARN", last_line(completed.diagnostics))


def last_line(diagnostics: str) -> str:
    """Return the last informative line of YARN's diagnostics; empty if there is none.

    Of a process that failed, they end with what it wrote last to stderr.
    """
    lines = [line.strip() for line in diagnostics.splitlines()]
    for line in reversed(lines):
        if line and not line.startswith(_SAME):
            return line[:MAX_LAST_LINE]
    # What it wrote may be nothing but those, each with its time before it.
    said = [line.partition("]")[2].strip() for line in lines if line.startswith("[20")]
    return next((line[:MAX_LAST_LINE] for line in reversed(said) if line), "")


def _with(sentence: str, words: str) -> str:
    return f"{sentence}: {words.rstrip('. ')}" if words else sentence
