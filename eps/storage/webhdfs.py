"""WebHDFS: authentication, classification of errors, and retries.

The package ``hdfs`` implements the protocol and fails over to the next NameNode.  Its raw operations are used where its
readers, writers and ``rename`` lack options: ``createflag``, ``renameoptions``, and DataNodes to exclude.

Transient failures are retried until a deadline: broken connections, HTTP 5xx, a NameNode on standby or in safe mode,
leases and blocks that HDFS recovers.  They are recognised by the class name of Java's exception.  All others are final.

With a Kerberos ticket and Java, no package for Kerberos over HTTP is needed: Hadoop's client obtains a delegation
token.
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

#: Environment variables: a delegation token for WebHDFS, and the retry deadline in seconds.
TOKEN_VARIABLE, PATIENCE_VARIABLE = "EPS_HDFS_TOKEN", "EPS_HDFS_PATIENCE_S"
#: A failover of NameNodes takes half a minute.
PATIENCE_S = 60.0
#: Timeouts of one request: for the connection, and for each further read.
CONNECT_S, SILENCE_S = 10.0, 30.0
#: First and longest pause between two tries; each pause doubles.
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 2.0
_TOLD_EVERY_S = 10.0
#: HTTP statuses that are retried; not 501, the answer to an unknown request.
_SERVER_ERRORS = (500, 502, 503, 504)
#: Matches queries of URLs and tokens, to remove them from messages.
_QUERY = re.compile(r"""\?[\w.%-]+=[^\s"'<>()]*|\b(delegation|token)=[^\s"'<>()&]*""")
SEE_IT_RUNS = "see that HDFS runs, and that HADOOP_CONF_DIR leads to it"
_NOT_A_WEB_PORT = (
    "that is the RPC port of Hadoop's own clients, not an HTTP port: use it with hdfs://, and the port of "
    "dfs.namenode.http-address with webhdfs://"
)

#: Transient Java exceptions, as ``RemoteException.exception`` names them.
_PASSING = frozenset(
    "SafeModeException StandbyException RetriableException LeaseExpiredException AlreadyBeingCreatedException "
    "RecoveryInProgressException NotReplicatedYetException BlockMissingException "
    "CannotObtainBlockLengthException".split()
)
#: Exceptions that are transient only in operations with DataNodes: Hadoop reports lost blocks as plain IOException.
_OF_DATA_NODES = frozenset(
    "IOException PathIOException EOFException ConnectException ConnectTimeoutException SocketException "
    "SocketTimeoutException NoRouteToHostException ClosedChannelException".split()
)
_SEE_DATA_NODES = "see that its DataNodes are live and have room (hdfs dfsadmin -report)"
#: WebHDFS answers SecurityException to a token that was cancelled or has expired.
_REFUSING = frozenset(("AuthenticationException", "InvalidToken", "SecurityException"))


class MissingError(StorageError):
    """The file or folder does not exist."""


class Passing(Exception):
    """A transient failure that the caller detected; the text describes it."""


@dataclass(frozen=True)
class Trouble:
    """The meaning of an error."""

    #: Description, without queries of URLs, which may hold a token.
    text: str
    #: Error to raise; None if it is transient.
    kind: type[StorageError] | None = None
    #: No server answers at the address.
    unreachable: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", _QUERY.sub("", self.text))


def remote_trouble(name: str, message: str) -> Trouble:
    """Return the meaning of Hadoop's error answer, by name and message of its ``RemoteException``."""
    first = message.strip().split("\n")[0].strip()
    told = f"{name}: {first}" if name and first else name or first
    # The second condition is the package's text for HTTP status 401.
    if name in _REFUSING or (not name and "Authentication failure" in message):
        text = f"HDFS refuses the credentials ({told}): renew the ticket (kinit) or the token"
        return Trouble(text, StorageDeniedError)
    if name == "SafeModeException":
        mended = "wait until it leaves, or run hdfs dfsadmin -safemode leave"
        return Trouble(f"the NameNode is in safe mode ({first}): {mended}")
    if name == "StandbyException":
        return Trouble(f"no NameNode is active ({first})")
    if name == "FileNotFoundException":
        return Trouble(f"no such file or folder ({first})", MissingError)
    if name == "AccessControlException":
        return Trouble(f"{first}: ask the owner for permission, or log in as another user", StorageDeniedError)
    return Trouble(told, None if name in _PASSING else StorageError)


def trouble_of(error: BaseException) -> Trouble | None:
    """Return the meaning of an exception of the package ``hdfs`` or of its HTTP; None for other exceptions."""
    from hdfs import HdfsError
    from requests import exceptions as rq
    from urllib3 import exceptions as u3

    if isinstance(error, Passing):
        return Trouble(str(error))
    if isinstance(error, HdfsError):
        if isinstance(error.message, str):
            return remote_trouble(error.exception or "", error.message)
        # An answer that is not WebHDFS's is passed on as bytes.
        text = "the answer is not WebHDFS's: check that the address is a NameNode's"
        return Trouble(_NOT_A_WEB_PORT if b"Hadoop IPC port" in error.message else text, StorageAwayError)
    if isinstance(error, rq.SSLError):
        return Trouble(f"TLS with {_asked(error)} fails: {innermost(error)}", StorageAwayError)
    if isinstance(unknown := _innermost(error), socket.gaierror):
        return Trouble(f"the host of {_asked(error)} is unknown ({unknown.strerror})", unreachable=True)
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
        return Trouble(f"the answer is not WebHDFS's ({type(error).__name__}: {error})", StorageAwayError)
    return None


def innermost(error: BaseException) -> str:
    """Return the innermost reason of an error of requests: the outer ones repeat the URL, with its query."""
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
    """The NameNodes of one file system, with retries.

    Parameters
    ----------
    name : str
        Name in messages, such as ``hdfs://lake``.
    client : hdfs.client.Client
        Several threads may call its raw operations.
    patience_s : float
        Retry deadline of transient failures.
    guess : str
        Added to the message if the address was guessed and no server answers there.
    """

    def __init__(self, name: str, client: Any, patience_s: float = PATIENCE_S, guess: str = "") -> None:
        self.name = name
        self.client = client
        self.patience_s = patience_s
        self._guess = guess

    def patience(self, what: str) -> Patience:
        """Return the retry state of one operation; ``what`` begins its messages."""
        guesses = {urlsplit(url).netloc: self._guess for url in self.client.urls} if self._guess else {}
        return Patience(what, self.patience_s, guesses)

    def ask(self, what: str, act: Callable[[], T]) -> T:
        """Return the result of ``act``; retry transient failures.

        Parameters
        ----------
        what : str
            Begins the message, as ``hdfs://lake/file: cannot be read``.
        act : callable
            Raises an error of the package ``hdfs``, of HTTP, or :class:`Passing`.

        Raises
        ------
        MissingError
            The file or folder does not exist.
        StorageAwayError
            No WebHDFS answers, or the retries timed out.
        StorageDeniedError
            The credentials or the access are refused.
        StorageError
            Another failure, which is final.
        """
        patience = self.patience(what)
        while True:
            try:
                return act()
            except Exception as error:
                patience.wait(error)

    def rename(self, source: str, target: str, options: str) -> None:
        """Rename a file or folder; with ``options`` ``OVERWRITE``, or ``NONE``, which requires an unused target.

        Raises
        ------
        HdfsError
            The rename is refused.
        """
        from hdfs import HdfsError

        answer = self.client._rename(source, destination=target, renameoptions=options)
        # A NameNode's answer is empty.  HttpFS ignores the options and answers whether it renamed.
        if answer.content and answer.json().get("boolean") is False:
            raise HdfsError("the rename was refused: use the WebHDFS of a NameNode, not of HttpFS")

    def data_node(self, act: Callable[..., Any], path: str, lost: list[str], **params: Any) -> str:
        """Return the URL of the DataNode that the NameNode chooses for a read or write.

        Parameters
        ----------
        act : callable
            A raw operation of the client.
        path : str
        lost : list of str
            DataNodes that failed, to be excluded; cleared if no other ones are left.
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
        """Send a request to a DataNode; return its answer.

        Raises
        ------
        HdfsError, Passing
            The DataNode refuses, or failed for now.
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
            # Another server may have the port of a stopped DataNode.
            raise Passing(f"HTTP status {answer.status_code} of {urlsplit(url).netloc}") from None
        finally:
            answer.close()


@contextmanager
def _of_data_nodes() -> Iterator[None]:
    """Convert errors about DataNodes to transient ones."""
    from hdfs import HdfsError

    try:
        yield
    except HdfsError as error:
        if error.exception not in _OF_DATA_NODES:
            raise
        raise Passing(f"{remote_trouble(error.exception, error.message).text}; {_SEE_DATA_NODES}") from None


class Patience:
    """The retry state of one operation: pauses between tries until a deadline, and reports them.

    Parameters
    ----------
    what : str
        Begins the messages.
    patience_s : float
    guesses : mapping
        NameNode address -> text to add if no server answers there.
    """

    def __init__(self, what: str, patience_s: float, guesses: Mapping[str, str]) -> None:
        self._what, self._patience_s, self._guesses = what, patience_s, guesses
        self._until_s = self._next_word_s = 0.0
        self._pause_s = _FIRST_PAUSE_S

    def wait(self, error: Exception) -> None:
        """Pause after a failed try, or raise if it is final.

        Raises
        ------
        StorageAwayError
            No WebHDFS answers, or the deadline has passed.
        StorageDeniedError
            The credentials or the access are refused.
        StorageError
            Another final failure.
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
            # Not chained: the traceback would show the URL, and a token in it.
            raise kind(f"{self._what}: {text}") from None
        now_s = time.monotonic()
        if not self._until_s:
            self._until_s, self._next_word_s = now_s + self._patience_s, now_s
        left_s = self._until_s - now_s
        if left_s <= 0:
            waited = f"retried for {self._patience_s:g} s ({PATIENCE_VARIABLE} sets that)"
            raise StorageAwayError(f"{self._what}: {text}; {waited}") from None
        if now_s >= self._next_word_s:
            told = f"{self._what} for now: {text}"
            logger.warning("%s; retrying for %.0f s", told, left_s)
            tell(told)
            self._next_word_s = now_s + _TOLD_EVERY_S
        interrupt.raise_if_stopped()
        time.sleep(min(self._pause_s, left_s))
        self._pause_s = min(2 * self._pause_s, _LAST_PAUSE_S)


# ---- connecting


def connect(
    scheme: str, authority: str, conf: HadoopConf, environ: Mapping[str, str], patience_s: float | None = None
) -> WebHdfs:
    """Return the NameNodes of a file system, without contacting them.

    Parameters
    ----------
    scheme : str
        ``hdfs``: the configuration has the address of WebHDFS; ``webhdfs``, ``swebhdfs``: the authority is the address.
    authority : str
    conf : HadoopConf
    environ : mapping
    patience_s : float, optional
        Default: the environment's ``EPS_HDFS_PATIENCE_S``, else :data:`PATIENCE_S`.

    Raises
    ------
    ConfigError
        A package is missing, a value of the configuration or environment is invalid, or the keytab does not exist.
    AuthenticationError
        Hadoop's own client has to log in, and has no ticket.
    StorageError
        The token file cannot be read.
    """
    urls, name, token = web_addresses(scheme, authority, conf), f"{scheme}://{authority}", _token(environ, authority)
    if conf.wants_kerberos and not token:
        client = _kerberos_client(urls, name, conf, environ)
    else:
        client = _client(urls, token, environ.get("HADOOP_USER_NAME", ""))
    guess = guess_of(conf, authority) if scheme == "hdfs" else ""
    return WebHdfs(name, client, _patience_s(environ, patience_s), guess)


def web_addresses(scheme: str, authority: str, conf: HadoopConf) -> tuple[str, ...]:
    """Return the URLs of WebHDFS, one for each NameNode; parameters are those of :func:`connect`.

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
    """Return the delegation token for WebHDFS, from its variable or YARN's token file; empty if there is none.

    Raises
    ------
    ConfigError
        The given text is not a token.  Checked here, since a NameNode would only close the connection.
    StorageError
        The token file cannot be read.
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
    """Return a client with a token, or with an unverified user name (empty: the process's user)."""
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
    # Hadoop uses no proxies; those of the environment are for external hosts.
    session.trust_env = False
    session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or True
    session.hooks["response"].append(_refuse_server_errors)
    return {"timeout": (CONNECT_S, SILENCE_S), "session": session}


def _refuse_server_errors(response: Any, **_: Any) -> None:
    """Treat a server error as a lost connection: the package then tries the next NameNode."""
    import requests

    if response.status_code in _SERVER_ERRORS:
        response.close()
        raise requests.ConnectionError(request=response.request, response=response)


def _kerberos_client(urls: Collection[str], name: str, conf: HadoopConf, environ: Mapping[str, str]) -> Any:
    """Return a client that authenticates with Kerberos: over HTTP if a package can, else by a token from Java."""
    try:
        from hdfs.client import Client

        rest = _session()
        rest["session"].auth = HttpAuth()
        return Client(";".join(urls), **rest)
    except ImportError as error:
        missing = error
    # Check the keytab first: Java needs it, so a missing package would be the wrong advice.
    keytab_of(environ)
    try:
        # Java is only for users without that package.
        from eps.hadoop.delegation import delegated_client

        return delegated_client(urls, name, conf, _session())
    except (ConfigError, ImportError) as error:
        raise ConfigError(
            f"this HDFS requires Kerberos, which needs the package requests-kerberos ({missing}): pip install "
            f"'.[kerberos]' in EPS's folder, or Hadoop's own client ({error})"
        ) from None
