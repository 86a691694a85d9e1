"""WebHDFS: who one is to it, what its errors mean, and how long it is asked again; tokens that it gives.

What stands for a moment is waited for, up to a deadline: a NameNode in safe mode or on standby, a DataNode that is
gone, a connection that breaks.  What will not change by waiting is an error at once: rights, quotas, missing files.

The package ``hdfs`` speaks the protocol and turns to the next NameNode where one is on standby.  Its raw operations are
used, not its readers and writers: these take neither ``createflag`` nor ``renameoptions``, and do not tell a lost
DataNode from a lost NameNode.

Whoever has a ticket, and Java, needs no package that speaks Kerberos over HTTP: a delegation token says who one is as
well.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from eps.errors import ConfigError, StorageAwayError, StorageDeniedError, StorageError
from eps.hadoop.conf import HadoopConf, addresses_of, guess_of, namenode_web_addresses
from eps.hadoop.kerberos import HttpAuth, keytab_of
from eps.hadoop.token_file import HA_SERVICE, HDFS_KIND, TOKEN_FILE_VARIABLE, HadoopToken, hdfs_token, parse_tokens
from eps.storage.api import tell
from eps.system import interrupt

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Environment variables: a token as WebHDFS takes it, and the seconds that something that may pass is waited for.
TOKEN_VARIABLE, PATIENCE_VARIABLE = "EPS_HDFS_TOKEN", "EPS_HDFS_PATIENCE_S"
#: A NameNode that fails over takes half a minute.
PATIENCE_S = 60.0
#: Of one request: until the connection is there, and until the next bytes are.
CONNECT_S, SILENCE_S = 10.0, 30.0
#: Between two tries: doubled each time, from the first to the last.
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 2.0
_TOLD_EVERY_S = 10.0
#: A query in a text, and a token wherever else it stands.
_QUERY = re.compile(r"""\?[\w.%-]+=[^\s"'<>()]*|\b(delegation|token)=[^\s"'<>()&]*""")
SEE_IT_RUNS = "see that HDFS runs, and that HADOOP_CONF_DIR leads to it"
_TAKES_NO_DATA = "no DataNode of HDFS takes data: see that one is live and has room (hdfs dfsadmin -report)"
_NOT_A_WEB_PORT = (
    "that port is one for Hadoop's own clients, which speak no HTTP: hdfs:// names a NameNode by that port, "
    "webhdfs:// by the one of its web pages (dfs.namenode.http-address)"
)

#: What Hadoop calls an error that goes by itself; as of ``RemoteException.exception``.
_PASSING = frozenset(
    "SafeModeException StandbyException RetriableException ConnectException ConnectTimeoutException SocketException "
    "SocketTimeoutException NoRouteToHostException EOFException BlockMissingException NotReplicatedYetException "
    "ClosedChannelException LeaseExpiredException AlreadyBeingCreatedException RecoveryInProgressException "
    "CannotObtainBlockLengthException DataNodeUnavailable".split()
)
#: The same, where the error is called IOException.  Source: NamenodeWebHdfsMethods, BlockManager, DFSInputStream,
#: StripeReader, FileChecksumHelper, DataStreamer and DFSOutputStream of Hadoop 3.5.
_PASSING_TEXTS = (
    "Namesystem has not been initialized",
    "Block could not be located",
    # Reading.
    "Could not obtain block",
    "Could not obtain the last block",
    "Cannot obtain block length",
    "Failed to read from all available datanodes",
    "missing blocks, the stripe is",
    "Fail to get block",
    # Writing.
    "All datanodes",
    "Could not get block locations",
    "Unable to create new block",
    "Unable to close file",
    "Failed to replace a bad datanode",
    "Failed to add a datanode",
    "Error recovering pipeline",
    "Failing write",
    "No ack received",
    # Either.
    "Connection reset",
    "Connection refused",
    "Broken pipe",
    "Premature EOF",
    "Got error, status",
)

#: The same, where nobody is there who has the block, or has room for it -> in words that say what to do.
_NO_DATA_NODE = {
    "nodes contain this block": "no live DataNode of HDFS has this block: see which are lost (hdfs dfsadmin -report)",
    "Failed to find datanode": _TAKES_NO_DATA,
    "could only be written to": _TAKES_NO_DATA,
}


@dataclass(frozen=True)
class Login:
    """Who one is to a file system."""

    #: ``token``, ``kerberos`` (the ticket of ``kinit``, or a keytab) or ``insecure`` (a name that nobody checks).
    kind: str
    #: Of ``insecure``; empty is the name of the process's user.
    user: str = ""
    #: Of ``token``, as :meth:`~eps.hadoop.token_file.HadoopToken.to_url_text` gives it.
    token: str = ""

    def __repr__(self) -> str:
        return f"Login({self.kind}{f' as {self.user}' if self.user else ''})"


def choose_login(
    conf: HadoopConf,
    environ: Mapping[str, str],
    tokens: Collection[HadoopToken],
    authority: str,
    addresses: Collection[str] = (),
) -> Login:
    """Return who one is to a file system: by a token that was given, by one of YARN's, by Kerberos, or by name.

    Parameters
    ----------
    conf : HadoopConf
    environ : mapping
        ``EPS_HDFS_TOKEN`` goes before all; ``HADOOP_USER_NAME`` is the name where nobody checks it.
    tokens : collection of HadoopToken
        Of the file that ``HADOOP_TOKEN_FILE_LOCATION`` names.
    authority, addresses
        As of :func:`~eps.hadoop.token_file.hdfs_token`.

    Raises
    ------
    ConfigError
        ``EPS_HDFS_TOKEN`` is no token: a NameNode would not say so, but end the connection.
    """
    given = environ.get(TOKEN_VARIABLE)
    if given:
        try:
            HadoopToken.from_url_text(given, TOKEN_VARIABLE)
        except StorageError as error:
            raise ConfigError(f"{error}; it must be the text that op=GETDELEGATIONTOKEN of WebHDFS answers") from None
        return Login("token", token=given)
    token = hdfs_token(tokens, authority, addresses)
    if token is not None:
        return Login("token", token=token.to_url_text())
    if conf.wants_kerberos:
        return Login("kerberos")
    return Login("insecure", user=environ.get("HADOOP_USER_NAME", ""))


@dataclass(frozen=True)
class Trouble:
    """What an error means."""

    #: In words, without the query of an address: who is asked by a token has it there.
    text: str
    #: It may go by itself.
    passes: bool
    #: There is no such file or folder.
    missing: bool = False
    #: Nobody was found at an address.
    unreachable: bool = False
    #: Who answers there is no WebHDFS.
    stranger: bool = False
    #: Who asks is not believed, or may not have it.
    denied: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", _QUERY.sub("", self.text))


def remote_trouble(status: int, name: str, message: str) -> Trouble:
    """Return what an answer of Hadoop that is an error means.

    Parameters
    ----------
    status : int
        Of HTTP; 0 where it is not known.
    name, message : str
        Of the ``RemoteException``; Java's classes without their package.
    """
    first = message.strip().split("\n")[0].strip()
    told = f"{name}: {first}" if name and first else name or first or f"HTTP status {status}"
    proof = status == 401 or name in ("AuthenticationException", "InvalidToken")
    # Of a token that has expired or was cancelled WebHDFS says that it cannot tell who asks.
    if proof or "Authentication failure" in message or "$InvalidToken" in message:
        text = f"HDFS refuses the credentials ({told}): renew the ticket (kinit) or the token"
        return Trouble(text, passes=False, denied=True)
    if name == "SafeModeException" or "in safe mode" in message:
        text = f"the NameNode is in safe mode ({first}): it leaves it by itself, or by hdfs dfsadmin -safemode leave"
        return Trouble(text, passes=True)
    if name == "StandbyException":
        return Trouble(f"no NameNode is active ({first})", passes=True)
    if name == "FileNotFoundException":
        return Trouble(f"no such file or folder ({first})", passes=False, missing=True)
    if name == "AccessControlException" and "is not a directory" not in first:
        return Trouble(f"{first}: ask the owner for the right, or log in as another", passes=False, denied=True)
    for text, words in _NO_DATA_NODE.items():
        if text in message:
            return Trouble(words, passes=True)
    passes = name in _PASSING or any(text in message for text in _PASSING_TEXTS) or (not name and status >= 500)
    return Trouble(told, passes)


def trouble_of(error: BaseException) -> Trouble | None:
    """Return what an exception of the package ``hdfs`` or of its HTTP means; None where it is none of these."""
    from hdfs import HdfsError
    from requests import exceptions as rq
    from urllib3 import exceptions as u3

    if isinstance(error, HdfsError):
        # What is no answer of WebHDFS comes as it was sent.
        message = error.message.decode("utf-8", "replace") if isinstance(error.message, bytes) else str(error.message)
        if "Hadoop IPC port" in message:
            return Trouble(_NOT_A_WEB_PORT, passes=False, stranger=True)
        if message.lstrip().startswith("<"):
            text = "what answers, a page for people, is no WebHDFS: see that it is a NameNode's"
            return Trouble(text, passes=False, stranger=True)
        return remote_trouble(0, getattr(error, "exception", None) or "", message)
    if isinstance(error, rq.SSLError):
        return Trouble(f"TLS with {_asked(error)} fails: {innermost(error)}", passes=False, stranger=True)
    unknown = _innermost(error)
    if isinstance(unknown, socket.gaierror):
        text = f"the host of {_asked(error)} is not known ({unknown.strerror})"
        return Trouble(text, passes=True, unreachable=True)
    if isinstance(error, rq.Timeout | u3.TimeoutError):
        return Trouble(f"{_asked(error)} does not answer in time", passes=True)
    if isinstance(error, rq.ConnectionError | rq.ChunkedEncodingError | u3.ProtocolError | u3.NewConnectionError):
        text = f"{_asked(error)} cannot be reached, or the connection broke: {SEE_IT_RUNS}"
        return Trouble(text, passes=True, unreachable=True)
    if isinstance(error, ConnectionError | TimeoutError | EOFError):
        return Trouble(f"the connection broke ({error})", passes=True)
    if isinstance(error, rq.RequestException | u3.HTTPError):
        return Trouble(f"{type(error).__name__}: {innermost(error)}", passes=False)
    if isinstance(error, KeyError | ValueError | TypeError):
        text = f"what answers is no WebHDFS ({type(error).__name__}: {error})"
        return Trouble(text, passes=False, stranger=True)
    return None


def innermost(error: BaseException) -> str:
    """Return the innermost reason of an error of requests: the outer ones repeat the address, with its query."""
    error = _innermost(error)
    return getattr(error, "strerror", None) or str(error)


def _innermost(error: BaseException) -> BaseException:
    while True:
        inner = error.__cause__ or error.__context__ or getattr(error, "reason", None)
        if not isinstance(inner, BaseException) or inner is error:
            return error
        error = inner


def _asked(error: Any) -> str:
    request = getattr(error, "request", None)
    return urlsplit(request.url).netloc if request is not None and request.url else "HDFS"


class Passing(Exception):
    """Something that may go by itself, found by who asked; the text says what."""


class WebHdfs:
    """The NameNodes of one file system, asked until they answer.

    Parameters
    ----------
    name : str
        Named in messages, as ``hdfs://lake``.
    client : hdfs.client.Client
        Its raw operations may be called by several threads.
    patience_s : float
        How long something that may go by itself is waited for.
    guess : str
        Where its address is one: what is to be said of it where nobody is there.
    """

    def __init__(self, name: str, client: Any, patience_s: float = PATIENCE_S, guess: str = "") -> None:
        self.name = name
        self.client = client
        self.patience_s = patience_s
        self._guess = guess

    def patience(self, what: str) -> Patience:
        """Return what waits for these NameNodes; ``what`` begins its messages."""
        guesses = {urlsplit(url).netloc: self._guess for url in self.client.urls} if self._guess else {}
        return Patience(what, self.patience_s, guesses)

    def ask(self, what: str, act: Callable[[], T]) -> T:
        """Return what ``act`` returns; it is called again as long as what stops it may go by itself.

        Parameters
        ----------
        what : str
            Begins the message, as ``hdfs://lake/file: cannot be read``.
        act : callable
            Raises an error of the package ``hdfs``, of HTTP, or :class:`Passing`.

        Raises
        ------
        MissingError
            There is no such file or folder.
        StorageAwayError
            Nobody answers, or not within the deadline, or who is no WebHDFS.
        StorageDeniedError
            The credentials are refused, or one has no right to it.
        StorageError
            It cannot be done.
        """
        patience = self.patience(what)
        while True:
            try:
                return act()
            except Exception as error:
                patience.wait(error)

    def status(self, path: str) -> dict[str, Any]:
        """Return the ``FileStatus`` of a file or folder."""
        found: dict[str, Any] = self.client._get_file_status(path).json()["FileStatus"]
        return found

    def rename(self, source: str, target: str, options: str) -> None:
        """Rename a file or folder; ``options`` are ``OVERWRITE``, or ``NONE``: the target must be free.

        Raises
        ------
        HdfsError
            It is refused.
        """
        from hdfs import HdfsError

        answer = self.client._rename(source, destination=target, renameoptions=options)
        # Who knows the options answers nothing; who does not (HttpFS) renames in a way of its own.
        if answer.content and answer.json().get("boolean") is False:
            raise HdfsError("the rename was refused: WebHDFS must be a NameNode's own, not that of HttpFS")

    def data_node(self, act: Callable[..., Any], path: str, lost: list[str], **params: Any) -> str:
        """Return where the NameNode sends one with data, or for data.

        Parameters
        ----------
        act : callable
            A raw operation of the client.
        path : str
        lost : list of str
            DataNodes that failed; they are left out where there are others, and else forgotten.
        """

        def ask() -> str:
            with act(path, noredirect="true", excludedatanodes=",".join(lost) or None, **params) as answer:
                return str(answer.headers.get("location") or answer.json()["Location"])

        try:
            return ask()
        except Exception:
            if not lost:
                raise
            lost.clear()
        return ask()

    def send(self, method: str, url: str, **rest: Any) -> Any:
        """Ask a DataNode; return its answer.

        Raises
        ------
        HdfsError
            It refuses.
        """
        from hdfs import HdfsError

        answer = self.client._request(method, url, **rest)
        if answer.ok:
            return answer
        try:
            told = answer.json()["RemoteException"]
            raise HdfsError(str(told.get("message", "")), exception=str(told.get("exception", "")))
        except (ValueError, KeyError, TypeError):
            text = f"HTTP status {answer.status_code} of {urlsplit(url).netloc}"
            # Who knows no such page is no DataNode: it is gone, and another has its port.
            away = answer.status_code == 404 or answer.status_code >= 500
            raise HdfsError(text, exception="DataNodeUnavailable" if away else None) from None
        finally:
            answer.close()


class MissingError(StorageError):
    """There is no such file or folder."""


class Patience:
    """Waits between tries until a deadline, and says what for.

    Parameters
    ----------
    what : str
        Begins the messages.
    patience_s : float
    guesses : mapping
        By address of a NameNode: what is said of it where nobody is found there.  Of a DataNode nothing is guessed.
    """

    def __init__(self, what: str, patience_s: float, guesses: Mapping[str, str]) -> None:
        self._what, self._patience_s, self._guesses = what, patience_s, guesses
        self.again()

    def again(self) -> None:
        """Begin anew: something has gone well."""
        self._until_s = self._next_word_s = 0.0
        self._pause_s = _FIRST_PAUSE_S

    def wait(self, error: Exception) -> None:
        """Wait a moment after a try that failed.

        Raises
        ------
        StorageAwayError
            Nobody answers, or who is no WebHDFS, or the deadline has passed.
        StorageDeniedError
            The credentials are refused, or one has no right to it.
        StorageError
            It will not go by itself.
        """
        trouble = Trouble(str(error), passes=True) if isinstance(error, Passing) else trouble_of(error)
        if trouble is None:
            raise error
        guess = self._guesses.get(_asked(error))
        if trouble.unreachable and guess:
            nobody = getattr(_innermost(error), "errno", None) == socket.EAI_NONAME
            text = f"{trouble.text.removesuffix(f': {SEE_IT_RUNS}')}; {guess}"
            trouble = Trouble(text, passes=not nobody, unreachable=True)
        if not trouble.passes:
            # Not from the error: whoever prints what led to it would print the address, and a token in it.
            is_away = trouble.unreachable or trouble.stranger
            kind = MissingError if trouble.missing else StorageAwayError if is_away else StorageError
            kind = StorageDeniedError if trouble.denied else kind
            raise kind(f"{self._what}: {trouble.text}") from None
        now_s = time.monotonic()
        if not self._until_s:
            self._until_s, self._next_word_s = now_s + self._patience_s, now_s
        left_s = self._until_s - now_s
        if left_s <= 0:
            waited = f"it was waited for {self._patience_s:g} s ({PATIENCE_VARIABLE} sets that)"
            raise StorageAwayError(f"{self._what}: {trouble.text}; {waited}") from None
        if now_s >= self._next_word_s:
            text = f"{self._what} for now: {trouble.text}"
            logger.warning("%s; tries again for %.0f s", text, left_s)
            tell(text)
            self._next_word_s = now_s + _TOLD_EVERY_S
        interrupt.heed()
        time.sleep(min(self._pause_s, left_s))
        self._pause_s = min(2 * self._pause_s, _LAST_PAUSE_S)


# ---- making one


def connect(
    scheme: str, authority: str, conf: HadoopConf, environ: Mapping[str, str], patience_s: float | None = None
) -> WebHdfs:
    """Return the NameNodes of a file system; none of them is asked anything yet.

    Parameters
    ----------
    scheme : str
        ``hdfs``: the configuration says where WebHDFS is; ``webhdfs``, ``swebhdfs``: the authority is its address.
    authority : str
    conf : HadoopConf
    environ : mapping
    patience_s : float, optional
        Default: the environment's ``EPS_HDFS_PATIENCE_S``, else :data:`PATIENCE_S`.

    Raises
    ------
    ConfigError
        A package is missing, a value of the configuration or the environment cannot be, or there is no such keytab.
    AuthenticationError
        Hadoop's own client is to log in, and has no ticket.
    StorageError
        The file of tokens cannot be read.
    """
    urls = web_addresses(scheme, authority, conf)
    tokens = _tokens(environ)
    login = choose_login(conf, environ, tokens, authority, addresses_of(authority) if tokens else ())
    name = f"{scheme}://{authority}"
    client = _kerberos_client(urls, name, conf, environ) if login.kind == "kerberos" else _client(urls, login)
    guess = guess_of(conf, authority) if scheme == "hdfs" else ""
    return WebHdfs(name, client, _patience_s(environ, patience_s), guess)


def web_addresses(scheme: str, authority: str, conf: HadoopConf) -> tuple[str, ...]:
    """Return the URLs of WebHDFS, one for each NameNode; parameters as of :func:`connect`.

    Raises
    ------
    ConfigError
        A name service is configured without NameNodes.
    """
    if scheme == "hdfs":
        return namenode_web_addresses(conf, authority)
    return (f"{'https' if scheme == 'swebhdfs' else 'http'}://{authority}",)


def _patience_s(environ: Mapping[str, str], given_s: float | None) -> float:
    if given_s is not None:
        return given_s
    text = environ.get(PATIENCE_VARIABLE, "")
    try:
        found = float(text) if text else PATIENCE_S
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise ConfigError(f"{PATIENCE_VARIABLE} is {text!r}, but must be seconds, at least 0")
    return found


def _tokens(environ: Mapping[str, str]) -> tuple[HadoopToken, ...]:
    path = environ.get(TOKEN_FILE_VARIABLE, "")
    if not path:
        return ()
    try:
        return parse_tokens(Path(path).read_bytes(), path)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{TOKEN_FILE_VARIABLE} is {path}: cannot be read: {error.strerror}") from error


def _client(urls: Collection[str], login: Login) -> Any:
    try:
        import hdfs

        if login.kind == "token":
            return hdfs.TokenClient(";".join(urls), login.token, **_session())
        return hdfs.InsecureClient(";".join(urls), user=login.user or None, **_session())
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"HDFS needs the package hdfs ({error}): pip install '.[hdfs]' in EPS's folder") from None


def _session() -> dict[str, Any]:
    import requests

    session = requests.Session()
    # Hadoop knows no proxies: those of the environment are for the world outside.
    session.trust_env = False
    session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or True
    return {"timeout": (CONNECT_S, SILENCE_S), "session": session}


def _kerberos_client(urls: Collection[str], name: str, conf: HadoopConf, environ: Mapping[str, str]) -> Any:
    """Return a client that proves who it is: over HTTP where a package can, else by a token that Java obtains."""
    try:
        from hdfs.client import Client

        rest = _session()
        rest["session"].auth = HttpAuth()
        return Client(";".join(urls), **rest)
    except ImportError as error:
        missing = error
    # Java logs in by it: where it cannot be had, that is at fault, and neither package nor Java would mend it.
    keytab_of(environ)
    try:
        # Java, and what it needs, is for those who have no other way.
        from eps.hadoop.delegation import delegated_client

        return delegated_client(urls, name, conf, _session())
    except (ConfigError, ImportError) as error:
        raise ConfigError(
            f"this HDFS wants Kerberos, which needs the package requests-kerberos ({missing}): pip install "
            f"'.[kerberos]' in EPS's folder, or Hadoop's own client ({error})"
        ) from None


def ask_token(authority: str, conf: HadoopConf, environ: Mapping[str, str], renewer: str) -> HadoopToken:
    """Return a token for a file system from its WebHDFS (``GETDELEGATIONTOKEN``), as its own clients know it.

    Parameters
    ----------
    authority : str
        What stands in ``hdfs://AUTHORITY/``.
    conf : HadoopConf
    environ : mapping
    renewer : str
        Principal of who renews it.

    Raises
    ------
    StorageError
        It gives none: the message says why.
    """
    from hdfs.client import _Request

    web = connect("hdfs", authority, conf, environ)
    what = f"{web.name}: gives no token"
    # The package has no name for this operation.
    operation = _Request("GET").to_method("GETDELEGATIONTOKEN")
    answer = web.ask(what, lambda: operation(web.client, "/", renewer=renewer).json()["Token"]["urlString"])
    token = HadoopToken.from_url_text(str(answer), web.name)
    # WebHDFS names it after itself; whoever speaks to the NameNode otherwise looks for these.
    has_twins = conf.get(f"dfs.ha.namenodes.{authority}")
    service = f"{HA_SERVICE}{authority}" if has_twins else next(iter(addresses_of(authority)), authority)
    return dataclasses.replace(token, kind=HDFS_KIND, service=service)


def cancel_token(authority: str, conf: HadoopConf, environ: Mapping[str, str], token: HadoopToken) -> None:
    """Make a token of :func:`ask_token` worth nothing (``CANCELDELEGATIONTOKEN``); parameters as there.

    Raises
    ------
    StorageError
        It cannot be cancelled: the message says why.
    """
    from hdfs.client import _Request

    web = connect("hdfs", authority, conf, environ)
    operation = _Request("PUT").to_method("CANCELDELEGATIONTOKEN")
    text = token.to_url_text()
    web.ask(f"{web.name}: does not cancel a token", lambda: operation(web.client, "/", token=text))


def home_folder(authority: str, conf: HadoopConf, environ: Mapping[str, str]) -> str:
    """Return the path of the user's folder on a file system, as its WebHDFS says.

    Raises
    ------
    StorageError
        It cannot be asked.
    """
    web = connect("hdfs", authority, conf, environ)
    what = f"{web.name}: does not say where your folder is"
    return web.ask(what, lambda: str(web.client._get_home_directory("/").json()["Path"]))
