"""Turn Hadoop's Java exceptions into our errors, each with a sentence that says what to do.  Pure.

An exception comes as a chain of class names and messages, from the caught one to its last cause.  Stack traces go to
the log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from eps.errors import (
    AuthenticationError,
    ConfigError,
    DeadlineError,
    EpsError,
    JobNotFoundError,
    PeerUnavailableError,
    ResourceError,
    StorageAwayError,
    StorageError,
)


class NotRegisteredError(ResourceError):
    """The ResourceManager no longer knows the application master, which must register again.

    The ResourceManager has lost all requests that it had not answered.
    """


class AttemptEndedError(ResourceError):
    """The ResourceManager has ended this attempt of the application; its master must exit."""


class AskRefusedError(ResourceError):
    """The ResourceManager refuses a new ask of this heartbeat, and with it all new asks."""


#: Services on Hadoop's default ports, for addresses that the configuration does not name.
DEFAULT_PORTS = {
    8020: "the NameNode (fs.defaultFS)",
    9000: "the NameNode (fs.defaultFS)",
    8030: "the ResourceManager (yarn.resourcemanager.scheduler.address)",
    8032: "the ResourceManager (yarn.resourcemanager.address)",
    9866: "a DataNode (dfs.datanode.address)",
}
#: Longest quotation of a Java message, in characters.
_MAX_QUOTED = 500


@dataclass(frozen=True, slots=True)
class JavaError:
    """One exception of a chain of causes."""

    #: Class with package: ``java.net.ConnectException``; empty if only the message is known.
    name: str
    message: str = ""

    @property
    def short_name(self) -> str:
        """Class name without the package."""
        return self.name.rpartition(".")[2].rpartition("$")[2]


@dataclass(frozen=True, slots=True)
class HadoopPlace:
    """The addresses of a Hadoop configuration, for messages."""

    #: Folder of the configuration; empty if there is none.
    conf_dir: str = ""
    #: Settings that may hold an address: name -> value.
    settings: Mapping[str, str] = field(default_factory=dict)

    def who_listens(self, host: str, port: int) -> str:
        """Return a clause on which service should listen at an address, and which setting says so."""
        where = f"in {self.conf_dir}" if self.conf_dir else "of HADOOP_CONF_DIR, which is not set"
        # Java may name a host differently from the configuration: then compare ports only.
        for name in (re.escape(host), r"[^/@:]+"):
            for key, value in sorted(self.settings.items()):
                if re.search(rf"(^|[/@]){name}:{port}(/|$)", value):
                    return f"{_service(key)} should listen according to {key} {where}"
        known = DEFAULT_PORTS.get(port)
        if known is not None:
            return f"{known} listens by default; no setting {where} names another address"
        return f"no setting {where} names that address"


def _service(key: str) -> str:
    if "resourcemanager" in key:
        return "the ResourceManager"
    return "the NameNode" if key.startswith(("fs.", "dfs.namenode")) else "a service"


def explain(
    chain: Sequence[JavaError], doing: str, place: HadoopPlace, otherwise: Callable[[str], EpsError] = ResourceError
) -> EpsError:
    """Return the error to raise for a Java exception.

    Parameters
    ----------
    chain : sequence of JavaError
        From the caught exception to its last cause; not empty.
    doing : str
        Beginning of the message: ``the application cannot be submitted``.
    place : HadoopPlace
    otherwise : callable
        Makes the error for an unknown exception.
    """
    # The order of the rules decides, not the order of the chain.
    for rule in _RULES:
        for link in chain:
            if rule.applies(link):
                return rule.make(f"{doing}: {rule.sentence(link, place)}")
    last = next((link for link in reversed(chain) if link.message), chain[-1])
    kind = f" ({last.short_name})" if last.name else ""
    return otherwise(f"{doing}: {first_line(last.message) or 'no reason given'}{kind}")


def first_line(message: str) -> str:
    """Return the first line of a message, without a class name in front."""
    line = next((line.strip() for line in message.splitlines() if line.strip()), "")
    line = re.sub(r"^(Caused by: )?([a-z][\w$]*\.)+[A-Z][\w$]*:\s*", "", line)
    return line[:_MAX_QUOTED]


@dataclass(frozen=True, slots=True)
class _Rule:
    make: Callable[[str], EpsError]
    #: Class names without package; empty: any.
    names: tuple[str, ...]
    #: Parts of the message, in lower case; empty: any message.
    words: tuple[str, ...]
    sentence: Callable[[JavaError, HadoopPlace], str]

    def applies(self, link: JavaError) -> bool:
        named = not self.names or link.short_name in self.names
        text = link.message.lower()
        return named and (not self.words or any(word in text for word in self.words))


def _says(text: str) -> Callable[[JavaError, HadoopPlace], str]:
    return lambda link, place: text.format(words=first_line(link.message))


def _address(link: JavaError, place: HadoopPlace) -> str:
    match = re.search(r"\bto (?:exception: )?([\w.-]+):(\d+) failed", link.message) or re.search(
        r"([\w.-]+?)(?:/[\d.]+)?:(\d{2,5})\b", link.message
    )
    if match is None:
        return f"Hadoop cannot be reached ({first_line(link.message) or link.short_name})"
    host, port = match[1], int(match[2])
    return f"no answer from {host}:{port}, where {place.who_listens(host, port)}"


def _unknown_host(link: JavaError, place: HadoopPlace) -> str:
    where = place.conf_dir or "HADOOP_CONF_DIR"
    return f"the host is unknown ({first_line(link.message)}): correct it in {where}, or check the name resolution"


_ATTEMPT_ENDED = "YARN has ended this attempt of the application: it was killed, or another attempt has started"
_RULES = (
    _Rule(NotRegisteredError, ("ApplicationMasterNotRegisteredException",), (), _says("{words}")),
    _Rule(
        AttemptEndedError,
        ("ApplicationAttemptNotFoundException",),
        (),
        _says(_ATTEMPT_ENDED),
    ),
    # YARN forgets the token of an attempt that has ended.
    _Rule(AttemptEndedError, ("InvalidToken",), ("amrmtokensecretmanager",), _says(_ATTEMPT_ENDED)),
    _Rule(JobNotFoundError, ("ApplicationNotFoundException",), (), _says("YARN knows no such application")),
    _Rule(
        StorageAwayError,
        (),
        ("safe mode", "safemode"),
        _says("HDFS is in safe mode: wait until it leaves it (hdfs dfsadmin -safemode wait), then try again"),
    ),
    _Rule(
        StorageAwayError,
        (),
        ("minreplication", "could only be replicated", "could only be written"),
        _says("no DataNode of HDFS accepts data: check that one is live and has free space (hdfs dfsadmin -report)"),
    ),
    _Rule(
        StorageError,
        ("DSQuotaExceededException", "NSQuotaExceededException"),
        (),
        _says("{words}: delete files there, or raise the quota"),
    ),
    _Rule(
        ConfigError,
        (),
        ("can't get kerberos realm", "cannot locate default realm", "cannot locate kdc"),
        _says("Kerberos is not set up on this host ({words}): see /etc/krb5.conf, or the file of KRB5_CONFIG"),
    ),
    _Rule(
        AuthenticationError,
        (),
        ("unable to obtain password from user", "client not found in kerberos database"),
        _says("Kerberos does not know the user ({words}): check the principal (klist, or klist -kt for a keytab)"),
    ),
    _Rule(
        AuthenticationError,
        ("SaslException", "GSSException", "KerberosAuthException", "InvalidToken", "LoginException"),
        (),
        _says("the credentials are not accepted ({words}): run kinit, or set KRB5_CLIENT_KTNAME to a keytab"),
    ),
    _Rule(
        AuthenticationError,
        (),
        ("client cannot authenticate via", "gss initiate failed", "simple authentication is not enabled"),
        _says("the credentials are not accepted ({words}): run kinit, or set KRB5_CLIENT_KTNAME to a keytab"),
    ),
    _Rule(
        ConfigError,
        (),
        ("unknown queue", "non-leaf queue", "queue does not exist", "no such queue", "non existent queue"),
        _says("{words}: name a leaf queue that exists (yarn queue -list all)"),
    ),
    _Rule(
        ConfigError,
        (),
        ("does not have permission to submit", "cannot submit applications to queue", "not have access to queue"),
        _says("the queue refuses this user ({words}): choose another, or ask for the right to submit"),
    ),
    _Rule(
        ConfigError,
        (),
        ("stopped. cannot accept submission", "state is stopped", "is stopped", "is draining", "max-applications"),
        _says("the queue accepts no applications now ({words}): choose another, or wait"),
    ),
    _Rule(
        AskRefusedError,
        ("InvalidLabelResourceRequestException",),
        (),
        _says("the node label cannot be used ({words}): choose one that the queue may use, or none"),
    ),
    _Rule(
        AskRefusedError,
        ("InvalidResourceRequestException",),
        (),
        _says("{words}: request less memory or fewer vcores, or raise the cluster's maximum allocation"),
    ),
    _Rule(StorageError, ("AccessControlException",), ("permission denied",), _says("{words}")),
    _Rule(
        AuthenticationError,
        ("AccessControlException", "AuthorizationException", "AccessDeniedException"),
        (),
        _says("this user is not allowed to ({words})"),
    ),
    _Rule(StorageError, ("FileNotFoundException", "NoSuchFileException"), (), _says("{words}")),
    _Rule(StorageError, ("FileAlreadyExistsException", "AlreadyBeingCreatedException"), (), _says("{words}")),
    _Rule(PeerUnavailableError, ("UnknownHostException",), (), _unknown_host),
    _Rule(
        PeerUnavailableError,
        ("ConnectException", "NoRouteToHostException", "ConnectTimeoutException", "SocketTimeoutException"),
        (),
        _address,
    ),
    _Rule(
        PeerUnavailableError,
        ("EOFException", "SocketException", "ClosedChannelException", "BindException", "RetriableException"),
        (),
        _address,
    ),
    _Rule(
        PeerUnavailableError,
        ("StandbyException",),
        (),
        _says("all of the service's hosts are on standby, none is active ({words})"),
    ),
    _Rule(DeadlineError, ("TimeoutException", "InterruptedIOException"), (), _says("no answer in time ({words})")),
    _Rule(ConfigError, ("ClassNotFoundException", "NoClassDefFoundError"), (), _says("the class path lacks {words}")),
    _Rule(
        ResourceError,
        ("InvalidApplicationMasterRequestException",),
        (),
        _says("the ResourceManager refuses the application master: {words}"),
    ),
)
