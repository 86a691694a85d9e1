"""Errors of Hadoop as one sentence that says what to do."""

from __future__ import annotations

import pytest

from eps.errors import (
    AuthenticationError,
    ConfigError,
    DeadlineError,
    EpsError,
    JobNotFoundError,
    PeerUnavailableError,
    ResourceError,
    RpcError,
    StorageAwayError,
    StorageError,
)
from eps.hadoop.errors import (
    AskRefusedError,
    AttemptEndedError,
    HadoopPlace,
    JavaError,
    NotRegisteredError,
    explain,
    first_line,
)

PLACE = HadoopPlace(
    "/etc/hadoop/conf",
    {"yarn.resourcemanager.address": "rm.example:8032", "fs.defaultFS": "hdfs://nn.example:9000"},
)
YARN, RECORDS = "org.apache.hadoop.yarn.exceptions.", "org.apache.hadoop.security."


@pytest.mark.parametrize(
    ("name", "message", "kind", "words"),
    [
        (
            YARN + "YarnException",
            "Failed to submit application_1_0001 to YARN : Application application_1_0001 submitted by user: root to "
            "unknown queue: nope",
            ConfigError,
            ("unknown queue: nope", "yarn queue -list"),
        ),
        (
            "org.apache.hadoop.security.AccessControlException",
            "User eve does not have permission to submit application_1_0001 to queue root.batch",
            ConfigError,
            ("queue refuses this user", "root.batch"),
        ),
        (
            YARN + "YarnException",
            "Queue root.batch is STOPPED. Cannot accept submission of application: application_1_0001",
            ConfigError,
            ("accepts no applications now", "root.batch"),
        ),
        (
            YARN + "InvalidResourceRequestException",
            "Invalid resource request! Cannot allocate containers as requested resource is greater than maximum "
            "allowed allocation. Requested resource=<memory:9000, vCores:1>\n\tat org.apache.hadoop...",
            AskRefusedError,
            ("<memory:9000, vCores:1>", "request less memory"),
        ),
        (
            YARN + "InvalidLabelResourceRequestException",
            "Invalid resource request, queue=root.batch doesn't have permission to access all labels in request",
            AskRefusedError,
            ("node label cannot be used", "root.batch"),
        ),
        (
            RECORDS + "AccessControlException",
            "Client cannot authenticate via:[TOKEN, KERBEROS]",
            AuthenticationError,
            ("credentials are not accepted", "kinit", "keytab"),
        ),
        (
            RECORDS + "KerberosAuthException",
            "Login failure for user: eve@LAKE.ORG from keytab /k: javax.security.auth.login.LoginException: Unable to "
            "obtain password from user",
            AuthenticationError,
            ("Kerberos does not know the user", "eve@LAKE.ORG", "klist"),
        ),
        ("java.lang.IllegalArgumentException", "Can't get Kerberos realm", ConfigError, ("krb5.conf", "KRB5_CONFIG")),
        ("javax.security.sasl.SaslException", "GSS initiate failed", AuthenticationError, ("kinit",)),
        (
            "org.apache.hadoop.security.token.SecretManager$InvalidToken",
            "token (HDFS_DELEGATION_TOKEN) can't be found in cache",
            AuthenticationError,
            ("can't be found in cache",),
        ),
        (
            RECORDS + "AccessControlException",
            'Permission denied: user=eve, access=WRITE, inode="/user":hdfs:supergroup:drwxr-xr-x\n\tat x.y.Z',
            StorageError,
            ("user=eve, access=WRITE",),
        ),
        (
            RECORDS + "authorize.AuthorizationException",
            "User: root is not allowed to impersonate eve",
            AuthenticationError,
            ("not allowed to", "impersonate"),
        ),
        (
            "org.apache.hadoop.hdfs.server.namenode.SafeModeException",
            "Cannot create file/x. Name node is in safe mode.\nThe reported blocks 0 needs additional 1 blocks",
            StorageAwayError,
            ("HDFS is in safe mode", "dfsadmin -safemode wait"),
        ),
        (
            "java.io.IOException",
            "File /x could only be written to 0 of the 1 minReplication nodes. There are 0 datanode(s) running",
            StorageAwayError,
            ("no DataNode of HDFS accepts data", "dfsadmin -report"),
        ),
        ("java.io.FileNotFoundException", "File does not exist: /x", StorageError, ("File does not exist: /x",)),
        (
            "org.apache.hadoop.hdfs.protocol.DSQuotaExceededException",
            "The DiskSpace quota of /user/eve is exceeded",
            StorageError,
            ("quota of /user/eve",),
        ),
        (YARN + "ApplicationNotFoundException", "Application with id x doesn't exist", JobNotFoundError, ("no such",)),
        (YARN + "ApplicationMasterNotRegisteredException", "AM is not registered", NotRegisteredError, ()),
        (YARN + "ApplicationAttemptNotFoundException", "x doesn't exist", AttemptEndedError, ("was killed",)),
        (
            "org.apache.hadoop.security.token.SecretManager$InvalidToken",
            "appattempt_1_0001_000001 not found in AMRMTokenSecretManager.",
            AttemptEndedError,
            ("was killed",),
        ),
        ("java.net.UnknownHostException", "rm.exmaple: Name not known", PeerUnavailableError, ("rm.exmaple",)),
        ("org.apache.hadoop.ipc.StandbyException", "Operation category READ", PeerUnavailableError, ("standby",)),
        ("java.util.concurrent.TimeoutException", "after 5 s", DeadlineError, ("after 5 s",)),
        ("java.lang.NoClassDefFoundError", "org/x/Y", ConfigError, ("class path lacks org/x/Y",)),
        ("java.lang.IllegalStateException", "a.b.C: what\n\tat a.b", ResourceError, ("what",)),
    ],
)  # fmt: skip
def test_each_failure_is_an_error_of_ours_that_says_what_to_do(
    name: str, message: str, kind: type[EpsError], words: tuple[str, ...]
) -> None:
    error = explain([JavaError(name, message)], "the job cannot be submitted", PLACE)
    assert type(error) is kind
    text = str(error)
    assert text.startswith("the job cannot be submitted: ") and "\n" not in text and "\tat" not in text
    for word in words:
        assert word in text


def test_what_says_most_goes_first_wherever_in_the_chain_it_stands() -> None:
    chain = [
        JavaError("java.io.IOException", "Failed on local exception"),
        JavaError("java.net.ConnectException", "Connection refused"),
        JavaError("javax.security.sasl.SaslException", "GSS initiate failed"),
    ]
    assert isinstance(explain(chain, "x", PLACE), AuthenticationError)


def refused(address: str) -> JavaError:
    return JavaError(
        "java.net.ConnectException",
        f"Call From vm/127.0.0.1 to {address} failed on connection exception: java.net.ConnectException: Connection "
        "refused; For more details see:  http://wiki.apache.org/hadoop/ConnectionRefused",
    )


@pytest.mark.parametrize(
    ("address", "place", "words"),
    [
        (
            "rm.example:8032",
            PLACE,
            ("the ResourceManager should listen", "yarn.resourcemanager.address in /etc/hadoop/conf"),
        ),
        ("nn.example:9000", PLACE, ("the NameNode should listen", "fs.defaultFS in /etc/hadoop/conf")),
        ("192.0.2.7:9000", PLACE, ("the NameNode should listen", "fs.defaultFS in /etc/hadoop/conf")),
        ("0.0.0.0:8030", PLACE, ("yarn.resourcemanager.scheduler.address) listens by default", "/etc/hadoop/conf")),
        ("other:1234", PLACE, ("no setting in /etc/hadoop/conf names that address",)),
        ("0.0.0.0:8032", HadoopPlace(), ("HADOOP_CONF_DIR, which is not set",)),
    ],
)
def test_a_refused_connection_says_which_address_and_which_file_names_it(
    address: str, place: HadoopPlace, words: tuple[str, ...]
) -> None:
    error = explain([refused(address)], "the job cannot be submitted", place)
    assert isinstance(error, PeerUnavailableError)
    assert f"no answer from {address}" in str(error)
    for word in words:
        assert word in str(error)


def test_a_failure_to_connect_without_an_address_says_its_words() -> None:
    chain = [JavaError("java.io.EOFException", "End of File")]
    assert str(explain(chain, "a beat", PLACE)) == "a beat: Hadoop cannot be reached (End of File)"


def test_what_nobody_knows_is_what_the_caller_makes_of_it_and_names_the_exception() -> None:
    chain = [JavaError("a.b.Outer", ""), JavaError("a.b.Inner$Cause", "why"), JavaError("a.b.Last", "")]
    error = explain(chain, "a beat", PLACE, RpcError)
    assert type(error) is RpcError and str(error) == "a beat: why (Cause)"
    assert str(explain(chain[:1], "a beat", PLACE)) == "a beat: no reason given (Outer)"


def test_the_first_line_of_a_message_has_no_class_and_no_stack() -> None:
    assert first_line("\n org.x.YException: it: failed\n\tat x") == "it: failed"
    assert first_line("") == "" and len(first_line("y" * 9000)) == 500
