"""What proves to Hadoop who somebody is: delegation tokens, in Hadoop's own format.

Containers have tokens, not tickets: whoever submits obtains them, the ResourceManager renews them, and the application
master hands on those that its workers and servers need: what speaks for it, or for its user to the ResourceManager,
is not among them.

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
    """Return tokens for file systems and for the ResourceManager, for an application master to be submitted.

    The ResourceManager renews them as long as the application runs, and cancels them when it has ended.

    Parameters
    ----------
    session : HadoopSession
    file_systems : collection of str
        URLs, as ``hdfs://lake``; default: the cluster's own.

    Returns
    -------
    bytes
        Empty where the cluster asks nobody for a proof.

    Raises
    ------
    EpsError
        Nobody has logged in, or nobody answers.
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
    """Make tokens of :func:`obtain_tokens` worth nothing.

    Raises
    ------
    EpsError
        Somebody who gave one does not answer.
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
    """Return tokens for one file system, which nobody renews: for this process's own use.

    Raises
    ------
    EpsError
        Nobody has logged in, or nobody answers.
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
    """Return this process's tokens without those for the ResourceManager; empty where there is no other."""
    with session.errors("this process's tokens cannot be read"):
        user = java("org.apache.hadoop.security.UserGroupInformation").getCurrentUser()
        return pack(without_resource_manager(user.getCredentials()))


def without_resource_manager(credentials: Any) -> Any:
    """Return a copy of credentials in which nothing is for the ResourceManager."""
    kept = java("org.apache.hadoop.security.Credentials")()
    for token in credentials.getAllTokens():
        if str(token.getKind()) not in (AM_TOKEN, CLIENT_TOKEN):
            kept.addToken(token.getService(), token)
    for alias in credentials.getAllSecretKeys():
        kept.addSecretKey(alias, credentials.getSecretKey(alias))
    return kept


def pack(credentials: Any) -> bytes:
    """Return credentials in Hadoop's format; empty where there is nothing in them."""
    if not credentials.numberOfTokens() and not credentials.numberOfSecretKeys():
        return b""
    buffer = java("org.apache.hadoop.io.DataOutputBuffer")()
    credentials.writeTokenStorageToStream(buffer)
    return bytes(memoryview(buffer.getData())[: int(buffer.getLength())].tobytes())
