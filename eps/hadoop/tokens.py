"""Obtain, cancel and filter Hadoop's delegation tokens.

Containers authenticate by tokens, not by Kerberos tickets.  The client obtains the tokens at submission, and the
ResourceManager renews them.  The application master passes them on to its workers and servers, without those that
would let a container talk to the ResourceManager as the master or as its user.

Source: Hadoop, "YARN application security".
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from eps.errors import StorageError
from eps.hadoop.bridge import java, jbytes
from eps.hadoop.session import HadoopSession
from eps.hadoop.token_file import AM_TOKEN, CLIENT_TOKEN


def obtain_tokens(session: HadoopSession, file_systems: Collection[str] = ()) -> bytes:
    """Return an application's tokens for file systems and for the ResourceManager.

    The ResourceManager renews them while the application runs, and cancels them at its end.

    Parameters
    ----------
    session : HadoopSession
    file_systems : collection of str
        URLs, such as ``hdfs://lake``; empty: the cluster's default.

    Returns
    -------
    bytes
        Empty on a cluster without authentication.

    Raises
    ------
    EpsError
        The user has no valid ticket, or a service does not answer.
    """
    if not session.is_secure:
        return b""
    with session.errors("tokens for the cluster cannot be obtained"):
        credentials = java("org.apache.hadoop.security.Credentials")()
        renewer = java("org.apache.hadoop.yarn.client.util.YarnClientUtils").getRmPrincipal(session.java_conf)
        for url in file_systems or (session.get("fs.defaultFS"),):
            _add_file_system_tokens(session, url, renewer, credentials)
        _add_resource_manager_token(session, credentials, renewer)
        return pack(credentials)


def cancel_tokens(session: HadoopSession, tokens: bytes) -> None:
    """Cancel tokens of :func:`obtain_tokens`.

    Raises
    ------
    EpsError
        A service that issued one does not answer.
    """
    if not tokens:
        return
    with session.errors("tokens cannot be cancelled"):
        credentials = java("org.apache.hadoop.security.Credentials")()
        content = java("java.io.ByteArrayInputStream")(jbytes(tokens))
        credentials.readTokenStorageStream(java("java.io.DataInputStream")(content))
        for token in credentials.getAllTokens():
            token.cancel(session.java_conf)


def file_system_tokens(session: HadoopSession, url: str) -> bytes:
    """Return tokens for one file system, for this process's own use; they are not renewed.

    Raises
    ------
    EpsError
        The user has no valid ticket, or the file system does not answer.
    """
    with session.errors(f"a token for {url} cannot be obtained", StorageError):
        credentials = java("org.apache.hadoop.security.Credentials")()
        _add_file_system_tokens(session, url, session.user, credentials)
        return pack(credentials)


def _add_file_system_tokens(session: HadoopSession, url: str, renewer: Any, credentials: Any) -> None:
    path = java("org.apache.hadoop.fs.Path")(f"{url.rstrip('/')}/")
    path.getFileSystem(session.java_conf).addDelegationTokens(renewer, credentials)


def _add_resource_manager_token(session: HadoopSession, credentials: Any, renewer: Any) -> None:
    client = java("org.apache.hadoop.yarn.client.api.YarnClient").createYarnClient()
    client.init(session.java_conf)
    client.start()
    try:
        found = client.getRMDelegationToken(java("org.apache.hadoop.io.Text")(renewer))
        service = java("org.apache.hadoop.yarn.client.ClientRMProxy").getRMDelegationTokenService(session.java_conf)
        token = java("org.apache.hadoop.yarn.util.ConverterUtils").convertFromYarn(found, service)
        credentials.addToken(service, token)
    finally:
        client.stop()


def tokens_for_containers(session: HadoopSession) -> bytes:
    """Return this process's tokens except those for the ResourceManager; empty if there are no others."""
    with session.errors("this process's tokens cannot be read"):
        user = java("org.apache.hadoop.security.UserGroupInformation").getCurrentUser()
        return pack(without_resource_manager(user.getCredentials()))


def without_resource_manager(credentials: Any) -> Any:
    """Return a copy of credentials without tokens for the ResourceManager."""
    kept = java("org.apache.hadoop.security.Credentials")()
    for token in credentials.getAllTokens():
        if str(token.getKind()) not in (AM_TOKEN, CLIENT_TOKEN):
            kept.addToken(token.getService(), token)
    for alias in credentials.getAllSecretKeys():
        kept.addSecretKey(alias, credentials.getSecretKey(alias))
    return kept


def pack(credentials: Any) -> bytes:
    """Return credentials in Hadoop's format; empty if they hold nothing."""
    if not credentials.numberOfTokens() and not credentials.numberOfSecretKeys():
        return b""
    buffer = java("org.apache.hadoop.io.DataOutputBuffer")()
    credentials.writeTokenStorageToStream(buffer)
    return bytes(memoryview(buffer.getData())[: int(buffer.getLength())].tobytes())
