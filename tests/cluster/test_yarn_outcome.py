"""The outcome of an application that left no results, as YARN reports it."""

from __future__ import annotations

import dataclasses

import pytest

from eps.cluster.yarn.advice import CHECK_FILES, CHECK_MEMORY, CHECK_PYTHON, CHECK_VIRTUAL
from eps.cluster.yarn.outcome import outcome, parse_outcome
from eps.cluster.yarn.types import ApplicationReport
from eps.errors import StorageError

ID = "application_1_0001"
REPORT = ApplicationReport(
    ID, "a9a", "EPS", "ada", "default", "ACCEPTED", "UNDEFINED", "", "", -1, "", 0.0, (), 1, 0, 0
)
FINISHED = dataclasses.replace(REPORT, state="FINISHED", final_status="SUCCEEDED")
KILLED = dataclasses.replace(REPORT, state="KILLED", final_status="KILLED", diagnostics="Application killed by ada")


@pytest.mark.parametrize(
    ("report", "found"),
    [
        (FINISHED, ("finished", "", 0)),
        (dataclasses.replace(FINISHED, final_status="FAILED", diagnostics="x"), ("failed", "x", 1)),
        (dataclasses.replace(FINISHED, final_status="KILLED", diagnostics="x"), ("killed", "x", 1)),
        (KILLED, ("killed", "Application killed by ada", 1)),
    ],
)
def test_the_outcome_is_yarns_word(report: ApplicationReport, found: tuple[str, str, int]) -> None:
    assert outcome(report) == found


#: As of a real YARN, of an application master whose interpreter is not on its node.
NOT_STARTED = """\
Application application_1_0001 failed 2 times due to AM Container for appattempt_1_1_000002 exited with  exitCode: 127
Failing this attempt.Diagnostics: [2026-11-22 10:00:00.000]Exception from container-launch.
Container id: container_1_0001_02_000001
Exit code: 127

[2026-11-22 10:00:00.001]Container exited with a non-zero exit code 127. Error file: prelaunch.err.
Last 4096 bytes of prelaunch.err :
Last 4096 bytes of stderr :
bash: line 1: a warning
env: '/nowhere/python': No such file or directory


[2026-11-22 10:00:00.002]Container exited with a non-zero exit code 127. Error file: prelaunch.err.
For more detailed output, check the application tracking page: http://h:8088/cluster/app/application_1_0001
. Failing the application."""


def test_of_a_master_that_could_not_begin_its_last_line_is_the_reason() -> None:
    failed = dataclasses.replace(REPORT, state="FAILED", final_status="FAILED", diagnostics=NOT_STARTED)
    assert outcome(failed)[1] == (
        "its application master ended with exit code 127: env: '/nowhere/python': No such file or directory; "
        f"{CHECK_PYTHON}"
    )
    other = NOT_STARTED.replace("127", "1").replace("env: '/nowhere/python': No such file or directory", "Oops: 7")
    assert outcome(dataclasses.replace(failed, diagnostics=other))[1] == (
        "its application master ended with exit code 1: Oops: 7"
    )


#: As of a real YARN, of a master that found that another had taken over: Hadoop's client had logged what it met.
ENDED_ITSELF = NOT_STARTED.replace("127", "71").replace(
    "bash: line 1: a warning\nenv: '/nowhere/python': No such file or directory",
    "07:55:18.950 E eps.master.main: M goes on, and cannot be started again until this is mended: all are bad\n"
    "07:55:19.528 C eps.cluster.yarn.attempt: M another job master has taken over: this one ends\n"
    "07:55:19.600 I eps.master.main: M is still told something\n"
    "org.apache.hadoop.ipc.RemoteException(java.io.IOException): File could only be written to 0 nodes\n"
    "\tat org.apache.hadoop.util.concurrent.SubjectInheritingThread.run(SubjectInheritingThread.java:209)",
)


def test_of_a_master_that_ended_itself_its_own_words_are_the_reason_not_a_stack_of_java() -> None:
    failed = dataclasses.replace(REPORT, state="FAILED", final_status="FAILED", diagnostics=ENDED_ITSELF)
    word = "its application master ended with exit code 71: another job master has taken over: this one ends"
    assert outcome(failed)[1] == word
    # The line that it writes last may come before what a thread of Java still writes.
    last = ENDED_ITSELF.replace("org.apache", "eps: another job master has taken over\norg.apache", 1)
    assert outcome(dataclasses.replace(failed, diagnostics=last))[1] == (
        "its application master could not continue: another job master has taken over"
    )
    unlogged = ENDED_ITSELF.replace(" E eps", " W eps").replace(" C eps", " W eps")
    said = outcome(dataclasses.replace(failed, diagnostics=unlogged))[1]
    assert said.endswith("IOException): File could only be written to 0 nodes")


#: As of a real YARN, of one whose environment was on HDFS when it was submitted, and not when its node was to bring it.
NOT_BROUGHT = """\
Application application_1_0001 failed 3 times in previous 60000 milliseconds (global limit =10; local limit is =3) due \
to AM Container for appattempt_1_0001_000003 exited with  exitCode: -1000
Failing this attempt.Diagnostics: [2026-11-22 22:34:11.224]File does not exist: hdfs://nn:8020/envs/env.tar.gz
java.io.FileNotFoundException: File does not exist: hdfs://nn:8020/envs/env.tar.gz
\tat org.apache.hadoop.hdfs.DistributedFileSystem$29.doCall(DistributedFileSystem.java:1842)
\tat java.base/java.lang.Thread.run(Thread.java:840)

For more detailed output, check the application tracking page: http://h:8088/cluster/app/application_1_0001 Then click \
on links to logs of each attempt.
. Failing the application."""


#: As of the same, of one that is no archive.
NOT_UNPACKED = """\
Application application_1_0001 failed 3 times due to AM Container for appattempt_1_0001_000003 exited with  \
exitCode: -1000
Failing this attempt.Diagnostics: [2026-11-22 22:52:50.000]java.lang.reflect.UndeclaredThrowableException
\tat org.apache.hadoop.security.UserGroupInformation.doAs(UserGroupInformation.java:1974)
Caused by: org.apache.hadoop.yarn.exceptions.YarnException: Download and unpack failed
\tat org.apache.hadoop.yarn.util.FSDownload$2.run(FSDownload.java:430)
\t... 10 more
Caused by: java.io.IOException: Error executing command. gzip -dc | (cd 'env.tar.gz' && tar -x ) Process exited with \
exit code 2.
\t... 17 more

For more detailed output, check the application tracking page: http://h:8088/cluster/app/application_1_0001
. Failing the application."""


def test_of_files_that_a_node_could_not_bring_the_reason_has_no_stack() -> None:
    failed = dataclasses.replace(REPORT, state="FAILED", final_status="FAILED", diagnostics=NOT_BROUGHT)
    assert outcome(failed)[1] == (
        "its application master could not be started by its node: "
        f"File does not exist: hdfs://nn:8020/envs/env.tar.gz; {CHECK_FILES}"
    )
    assert outcome(dataclasses.replace(failed, diagnostics=NOT_UNPACKED))[1] == (
        "its application master could not be started by its node: Download and unpack failed; Error executing command. "
        f"gzip -dc | (cd 'env.tar.gz' && tar -x ) Process exited with exit code 2; {CHECK_FILES}"
    )
    # Where a node says nothing, all that YARN says is the reason.
    silent = (
        "AM Container exited with  exitCode: -1000\nFailing this attempt.Diagnostics: [x]\nFor more detailed output"
    )
    said = outcome(dataclasses.replace(failed, diagnostics=silent))[1]
    assert said == " ".join(silent.split("\n"))


#: As a NodeManager says it of a container that takes too much.
TOO_MUCH = """\
Application application_1_0001 failed 3 times due to AM Container for appattempt_1_0001_000003 exited with  \
exitCode: {code}
Failing this attempt.Diagnostics: [2026-11-22 10:00:00.000]Container [pid=7,containerID=container_1_0001_03_000001] is \
running 12345B beyond the '{kind}' memory limit. Current usage: 512.1 MB of 512 MB physical memory used; 2.1 GB of \
1.1 GB virtual memory used. Killing container.
Dump of the process-tree for container_1_0001_03_000001 :
\t|- PID PPID PGRPID SESSID CMD_NAME USER_MODE_TIME(MILLIS) SYSTEM_TIME(MILLIS) VMEM_USAGE(BYTES) FULL_CMD_LINE
\t|- 7 6 7 7 (python) 1 1 1 1 python -m eps.job.yarn.am

[2026-11-22 10:00:00.001]Container killed on request. Exit code is 143
For more detailed output, check the application tracking page: http://h:8088/cluster/app/application_1_0001
. Failing the application."""


@pytest.mark.parametrize(
    ("code", "kind", "began", "hint"),
    [
        (-104, "PHYSICAL", "its application master exceeded its memory limit: Container [pid=7,", CHECK_MEMORY),
        (-103, "VIRTUAL", "its application master exceeded its limit of virtual memory: Container ", CHECK_VIRTUAL),
    ],
)
def test_of_a_master_that_took_too_much_memory_the_reason_says_how_much_and_what_to_do(
    code: int, kind: str, began: str, hint: str
) -> None:
    said = TOO_MUCH.format(code=code, kind=kind)
    state, reason, _ = outcome(dataclasses.replace(REPORT, state="FAILED", final_status="FAILED", diagnostics=said))
    assert state == "failed" and reason.startswith(began)
    assert reason.endswith(f"1.1 GB virtual memory used. Killing container; {hint}") and "PGRPID" not in reason


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"state": "finished"}', b'{"state": "", "reason": "", "exit_code": "x"}']
)
def test_a_word_that_says_nothing_is_named_by_its_file(content: bytes) -> None:
    assert parse_outcome(b'{"state": "finished", "reason": "done", "exit_code": 0}', "here") == ("finished", "done", 0)
    with pytest.raises(StorageError, match=r"/ended\.json does not say"):
        parse_outcome(content, "hdfs://nn/ended.json")
