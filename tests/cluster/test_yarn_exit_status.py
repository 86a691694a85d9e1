"""Exit statuses of YARN's containers, in words."""

from __future__ import annotations

import pytest

from eps.cluster.yarn.exit_status import exit_of, is_taken, last_line
from eps.cluster.yarn.types import Completed, Grant, Resource

CONTAINER = "container_1_0001_01_000002"
GRANT = Grant(CONTAINER, "node-7:8041", 1, Resource(512, 1))
LOST = "Container released on a *lost* node"

#: As a NodeManager of Hadoop 3.5 says that a process failed.
FAILED = """[2026-11-21 10:00:00.123]Exception from container-launch.
Container id: container_1_0001_01_000002
Exit code: 1

[2026-11-21 10:00:00.125]Container exited with a non-zero exit code 1. Error file: prelaunch.err.
Last 4096 bytes of prelaunch.err :
Last 4096 bytes of stderr :
Traceback (most recent call last):
  File "x.py", line 1, in <module>
ModuleNotFoundError: No module named 'eps'


"""

#: As it says that there is no such file to bring.
NOT_BROUGHT = """[2026-11-22 22:34:11.224]File does not exist: hdfs://nn:8020/envs/a.tar.gz
java.io.FileNotFoundException: File does not exist: hdfs://nn:8020/envs/a.tar.gz
\tat org.apache.hadoop.hdfs.DistributedFileSystem$29.doCall(DistributedFileSystem.java:1842)
\tat java.base/java.lang.Thread.run(Thread.java:840)

"""

#: As it says that a process was ended by a signal that was not its own; of its own it does not say the last line.
BY_OTHERS = """[2026-11-23 03:49:02.458]Container killed on request. Exit code is 143
[2026-11-23 03:49:02.459]Container exited with a non-zero exit code 143.\x20
[2026-11-23 03:49:02.459]Killed by external signal
"""

NOT_UNPACKED = """[2026-11-22 22:52:50.000]java.lang.reflect.UndeclaredThrowableException
\tat org.apache.hadoop.security.UserGroupInformation.doAs(UserGroupInformation.java:1974)
Caused by: java.io.IOException: Error executing command. exit code 2.
\t... 17 more
"""


@pytest.mark.parametrize(
    ("status", "diagnostics", "code", "reason"),
    [
        (0, "", 0, "exited with code 0"),
        (7, "", 7, "exited with code 7"),
        (1, FAILED, 1, "exited with code 1: ModuleNotFoundError: No module named 'eps'"),
        (137, "", None, "was ended by SIGKILL"),
        (143, BY_OTHERS, None, "was ended by SIGTERM, sent by another process on its node node-7, not by YARN"),
        (143, BY_OTHERS.rpartition("[")[0], None, "was ended by its node node-7 (SIGTERM)"),
        (143, "", None, "was ended by SIGTERM"),
        (139, "", None, "was ended by SIGSEGV"),
        (255, "", 255, "exited with code 255"),
        (-100, LOST, None, "was lost with its node node-7"),
        (
            -100,
            "Container expired since it was unused",
            None,
            "was released by YARN: it was not started on node-7 in time",
        ),
        (-100, "", None, "was released by YARN"),
        (-101, "", None, "was ended because too many disks of its node node-7 failed"),
        (-102, "", None, "was preempted on node-7: another queue or application needed its capacity"),
        (-105, "", None, "was stopped by the job master"),
        (-106, "over the limit", None, "was ended by the ResourceManager: over the limit"),
        (-107, "", None, "was ended with its application"),
        (-109, "", None, "was killed because it wrote more log than its node allows"),
        (-1000, "File does not exist: x.zip", None, "could not be started on node-7: File does not exist: x.zip"),
        (-1000, NOT_BROUGHT, None, "could not be started on node-7: File does not exist: hdfs://nn:8020/envs/a.tar.gz"),
        (-1000, NOT_UNPACKED, None, "could not be started on node-7: Error executing command. exit code 2"),
        (-7777, "who knows", None, "was ended by YARN with status -7777: who knows"),
        (154, "", None, "was lost when the NodeManager of node-7 restarted"),
    ],
)
def test_each_exit_status_is_a_sentence(status: int, diagnostics: str, code: int | None, reason: str) -> None:
    assert exit_of(Completed(CONTAINER, status, diagnostics), GRANT) == (code, reason)


@pytest.mark.parametrize(("status", "kind"), [(-103, "virtual memory"), (-104, "memory")])
def test_a_container_that_took_too_much_memory_says_how_much_it_had(status: int, kind: str) -> None:
    _, reason = exit_of(Completed(CONTAINER, status), GRANT)
    assert kind in reason and "512 MB" in reason and "more" in reason


def test_an_opportunistic_container_that_made_room_says_so() -> None:
    _, reason = exit_of(Completed(CONTAINER, -108, "Opportunistic container queue is full"), GRANT)
    assert "make room" in reason and "opportunistic" in reason


@pytest.mark.parametrize("status", [-100, -105, 137, 143])
def test_what_was_ended_on_purpose_says_the_purpose(status: int) -> None:
    assert exit_of(Completed(CONTAINER, status), GRANT, "was released") == (None, "was released")


@pytest.mark.parametrize(("status", "word"), [(-102, "preempted"), (-101, "disks"), (3, "code 3")])
def test_what_ended_otherwise_before_its_purpose_says_how(status: int, word: str) -> None:
    assert word in exit_of(Completed(CONTAINER, status), GRANT, "was released")[1]


@pytest.mark.parametrize(
    ("status", "diagnostics"),
    [
        *((status, "") for status in (-100, -101, -102, -105, -106, -107, -108, 154)),
        (143, BY_OTHERS.rpartition("[")[0]),
    ],
)
def test_what_the_cluster_takes_or_loses_is_told_from_what_a_process_does(status: int, diagnostics: str) -> None:
    assert is_taken(Completed(CONTAINER, status, diagnostics))


@pytest.mark.parametrize(
    ("status", "diagnostics", "purpose"),
    [
        *((status, "", "") for status in (0, 1, 137, 139, 143, -103, -104, -109, -1000)),
        (1, FAILED, ""),
        (143, BY_OTHERS, ""),
        (-100, "", "was released"),
        (-105, "", "was killed by the job master"),
    ],
)
def test_what_a_process_does_and_what_the_job_ends_itself_is_not_taken(
    status: int, diagnostics: str, purpose: str
) -> None:
    assert not is_taken(Completed(CONTAINER, status, diagnostics), purpose)


def test_last_words_are_never_long_and_may_be_none() -> None:
    assert len(last_line("x" * 5000)) == 300
    assert last_line(" \n\n") == ""
    assert last_line("[2026-11-21 10:00:00.123]Container exited\n[2026-11-21 10:00:00.125]\n") == "Container exited"


@pytest.mark.parametrize(
    "line",
    [
        "\tat a.B.c(B.java:1)",
        "\t... 17 more",
        "Last 4096 bytes of stderr :",
        "Error files: stderr",
        "[2026-11-21 10:00:00.123]x",
        "Failing this attempt.Diagnostics: x",
    ],
)
def test_last_words_are_none_of_the_lines_that_yarn_writes_each_time(line: str) -> None:
    assert last_line(f"its own\n{line}\n") == "its own"
