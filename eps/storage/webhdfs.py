"""WebHDFS: who one is to it, what its errors mean, and how long it is asked again.

The package ``hdfs`` speaks the protocol and turns to the next NameNode where one is on standby or away.  Its raw
operations are used where its readers, writers and ``rename`` cannot say what is needed: ``createflag``,
``renameoptions``, and which DataNodes are lost.

What goes by itself is waited for, up to a deadline: connections that break, HTTP 5xx, a NameNode on standby or in safe
mode, leases and blocks that HDFS recovers.  Java's class name in the answer says so.  All else is an error at once.

Whoever has a ticket, and Java, needs no package that speaks Kerberos over HTTP: a delegation token says who one is as
well.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from eps.errors import ConfigError, StorageAwayError, StorageDeniedError, StorageError
from eps.hadoop.conf import HadoopConf, addresses_of, guess_of, namenode_web_addresses
from eps.hadoop.kerberos import HttpAuth, keytab_of
from eps.hadoop.token_file import TOKEN_FILE_VARIABLE, HadoopToken, hdfs_token, parse_tokens
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
#: Of HTTP: not 501, by which one says that it knows no such request.
_SERVER_ERRORS = (500, 502, 503, 504)
#: A query in a text, and a token wherever else it stands.
_QUERY = re.compile(r"""\?[\w.%-]+=[^\s"'<>()]*|\b(delegation|token)=[^\s"'<>()&]*""")
SEE_IT_RUNS = "see that HDFS runs, and that HADOOP_CONF_DIR leads to it"
_NOT_A_WEB_PORT = (
    "that port is one for Hadoop's own clients, which speak no HTTP: hdfs:// names a NameNode by that port, "
    "webhdfs:// by the one of its web pages (dfs.namenode.http-address)"
)

#: Java's classes, without their package, of what goes by itself: as of ``RemoteException.exception``.
_PASSING = frozenset(
    "SafeModeException StandbyException RetriableException LeaseExpiredException AlreadyBeingCreatedException "
    "RecoveryInProgressException NotReplicatedYetException BlockMissingException "
    "CannotObtainBlockLengthException".split()
)
#: Those that tell of DataNodes and connections to them, where one is looked for or asked: of lost blocks Hadoop says no
#: more than IOException.
_OF_DATA_NODES = frozenset(
    "IOException PathIOException EOFException ConnectException ConnectTimeoutException SocketException "
    "SocketTimeoutException NoRouteToHostException ClosedChannelException".split()
)
_SEE_DATA_NODES = "see that its DataNodes are live and have room (hdfs dfsadmin -report)"
#: A cancelled or expired token is a SecurityException to WebHDFS, which then cannot tell who asks.
_REFUSING = frozenset(("AuthenticationException", "InvalidToken", "SecurityException"))


class MissingError(StorageError):
    """There is no such file or folder."""


class Passing(Exception):
    """Something that may go by itself, found by who asked; the text says what."""


@dataclass(frozen=True)
class Trouble:
    """What an error means."""

    #: In words, without the query of an address: who is asked by a token has it there.
    text: str
    #: What is raised for it; None: it may go by itself.
    kind: type[StorageError] | None = None
    #: Nobody was found at an address.
    unreachable: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", _QUERY.sub("", self.text))


def remote_trouble(name: str, message: str) -> Trouble:
    """Return what an answer of Hadoop that is an error means, by the name and message of its ``RemoteException``."""
    first = message.strip().split("\n")[0].strip()
    told = f"{name}: {first}" if name and first else name or first
    # The second are the words of the package for HTTP status 401.
    if name in _REFUSING or (not name and "Authentication failure" in message):
        text = f"HDFS refuses the credentials ({told}): renew the ticket (kinit) or the token"
        return Trouble(text, StorageDeniedError)
    if name == "SafeModeException":
        mended = "it leaves it by itself, or by hdfs dfsadmin -safemode leave"
        return Trouble(f"the NameNode is in safe mode ({first}): {mended}")
    if name == "StandbyException":
        return Trouble(f"no NameNode is active ({first})")
    if name == "FileNotFoundException":
        return Trouble(f"no such file or folder ({first})", MissingError)
    if name == "AccessControlException":
        return Trouble(f"{first}: ask the owner for the right, or log in as another", StorageDeniedError)
    return Trouble(told, None if name in _PASSING else StorageError)


def trouble_of(error: BaseException) -> Trouble | None:
    """Return what an exception of the package ``hdfs`` or of its HTTP means; None where it is none of these."""
    from hdfs import HdfsError
    from requests import exceptions as rq
    from urllib3 import exceptions as u3

    if isinstance(error, Passing):
        return Trouble(str(error))
    if isinstance(error, HdfsError):
        if isinstance(error.message, str):
            return remote_trouble(error.exception or "", error.message)
        # What is no answer of WebHDFS comes as it was sent.
        text = "what answers is no WebHDFS: see that it is a NameNode's"
        return Trouble(_NOT_A_WEB_PORT if b"Hadoop IPC port" in error.message else text, StorageAwayError)
    if isinstance(error, rq.SSLError):
        return Trouble(f"TLS with {_asked(error)} fails: {innermost(error)}", StorageAwayError)
    if isinstance(unknown := _innermost(error), socket.gaierror):
        return Trouble(f"the host of {_asked(error)} is not known ({unknown.strerror})", unreachable=True)
    if isinstance(error, rq.Timeout | u3.TimeoutError | TimeoutError):
        return Trouble(f"{_asked(error)} does not answer in time")
    if isinstance(error, rq.ConnectionError | rq.ChunkedEncodingError | u3.HTTPError | ConnectionError | EOFError):
        answer = getattr(error, "response", None)
        if answer is not None:
            return Trouble(f"{_asked(error)} answers HTTP status {answer.status_code}")
        return Trouble(f"{_asked(error)} cannot be reached, or the connection broke: {SEE_IT_RUNS}", unreachable=True)
    if isinstance(error, rq.RequestException):
        return Trouble(f"{type(error).__name__}: {innermost(error)}", StorageError)
    if isinstance(error, KeyError | ValueError | TypeError):
        return Trouble(f"what answers is no WebHDFS ({type(error).__name__}: {error})", StorageAwayError)
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
            with (
                _of_data_nodes(),
                act(path, noredirect="true", excludedatanodes=",".join(lost) or None, **params) as found,
            ):
                return str(found.headers.get("location") or found.json()["Location"])

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
        HdfsError, Passing
            It refuses, or cannot do it now.
        """
        from hdfs import HdfsError

        answer = self.client._request(method, url, **rest)
        if answer.ok:
            return answer
        try:
            with _of_data_nodes():
                told = answer.json()["RemoteException"]
                raise HdfsError(str(told.get("message", "")), exception=str(told.get("exception", "")))
        except (ValueError, KeyError, TypeError):
            # Who does not speak as one is no DataNode: it is gone, and another has its port.
            raise Passing(f"HTTP status {answer.status_code} of {urlsplit(url).netloc}") from None
        finally:
            answer.close()


@contextmanager
def _of_data_nodes() -> Iterator[None]:
    """Take what Hadoop says of DataNodes for something that goes by itself."""
    from hdfs import HdfsError

    try:
        yield
    except HdfsError as error:
        if error.exception not in _OF_DATA_NODES:
            raise
        raise Passing(f"{remote_trouble(error.exception, error.message).text}; {_SEE_DATA_NODES}") from None


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
        trouble = trouble_of(error)
        if trouble is None:
            raise error
        text, kind, guess = trouble.text, trouble.kind, self._guesses.get(_asked(error))
        if trouble.unreachable and guess:
            text = f"{text.removesuffix(f': {SEE_IT_RUNS}')}; {guess}"
            if getattr(_innermost(error), "errno", None) == socket.EAI_NONAME:
                kind = StorageAwayError
        if kind is not None:
            # Not from the error: whoever prints what led to it would print the address, and a token in it.
            raise kind(f"{self._what}: {text}") from None
        now_s = time.monotonic()
        if not self._until_s:
            self._until_s, self._next_word_s = now_s + self._patience_s, now_s
        left_s = self._until_s - now_s
        if left_s <= 0:
            waited = f"it was waited for {self._patience_s:g} s ({PATIENCE_VARIABLE} sets that)"
            raise StorageAwayError(f"{self._what}: {text}; {waited}") from None
        if now_s >= self._next_word_s:
            told = f"{self._what} for now: {text}"
            logger.warning("%s; tries again for %.0f s", told, left_s)
            tell(told)
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
    urls, name, token = web_addresses(scheme, authority, conf), f"{scheme}://{authority}", _token(environ, authority)
    if conf.wants_kerberos and not token:
        client = _kerberos_client(urls, name, conf, environ)
    else:
        client = _client(urls, token, environ.get("HADOOP_USER_NAME", ""))
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


def _token(environ: Mapping[str, str], authority: str) -> str:
    """Return the token to prove by who one is, as WebHDFS takes it: the one given for it, or one of YARN's; else empty.

    Raises
    ------
    ConfigError
        What is given is no token: a NameNode would not say so, but end the connection.
    StorageError
        The file of tokens cannot be read.
    """
    given, path = environ.get(TOKEN_VARIABLE, ""), environ.get(TOKEN_FILE_VARIABLE, "")
    if given:
        try:
            HadoopToken.from_url_text(given, TOKEN_VARIABLE)
        except StorageError as error:
            raise ConfigError(f"{error}; it must be the text that op=GETDELEGATIONTOKEN of WebHDFS answers") from None
        return given
    if not path:
        return ""
    try:
        blob = Path(path).read_bytes()
    except OSError as error:
        raise StorageError(f"{TOKEN_FILE_VARIABLE} is {path}: cannot be read: {error.strerror}") from error
    token = hdfs_token(parse_tokens(blob, path), authority, addresses_of(authority))
    return token.to_url_text() if token is not None else ""


def _client(urls: Collection[str], token: str, user: str) -> Any:
    """Return a client that has a token, or a name that nobody checks: by default that of the process's user."""
    try:
        import hdfs

        if token:
            return hdfs.TokenClient(";".join(urls), token, **_session())
        return hdfs.InsecureClient(";".join(urls), user=user or None, **_session())
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"HDFS needs the package hdfs ({error}): pip install '.[hdfs]' in EPS's folder") from None


def _session() -> dict[str, Any]:
    import requests

    session = requests.Session()
    # Hadoop knows no proxies: those of the environment are for the world outside.
    session.trust_env = False
    session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or True
    session.hooks["response"].append(_refuse_server_errors)
    return {"timeout": (CONNECT_S, SILENCE_S), "session": session}


def _refuse_server_errors(response: Any, **_: Any) -> None:
    """Take a server that cannot answer for one that is away: the package then asks the next NameNode."""
    import requests

    if response.status_code in _SERVER_ERRORS:
        response.close()
        raise requests.ConnectionError(request=response.request, response=response)


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
