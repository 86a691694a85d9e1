"""Kerberos as this process finds it, by the variables that MIT's programs know too.

``KRB5CCNAME`` names the cache with the ticket of ``kinit``, ``KRB5_CLIENT_KTNAME`` a keytab that takes the place of a
ticket, ``KRB5_CONFIG`` the settings of the realms.

Source: MIT Kerberos, "Environment variables" and "Keytab file format".
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eps.errors import AuthenticationError, ConfigError

CACHE_VARIABLE, KEYTAB_VARIABLE, CONFIG_VARIABLE = "KRB5CCNAME", "KRB5_CLIENT_KTNAME", "KRB5_CONFIG"
_FILE = "FILE:"
_KEYTAB_MAGIC = b"\x05\x02"
_LENGTH_BYTES = 4


def keytab_of(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the path of the keytab to log in with, and the first principal in it; None where none is named.

    Raises
    ------
    ConfigError
        It cannot be read, or is no keytab.
    """
    path = environ.get(KEYTAB_VARIABLE, "").removeprefix(_FILE)
    if not path:
        return None
    where, mended = f"{KEYTAB_VARIABLE} is {path}", "let it name a keytab that you can read, or unset it and run kinit"
    try:
        return path, first_principal(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror}: {mended}") from None
    except (ValueError, IndexError) as error:
        raise ConfigError(f"{where}: is no keytab: {error}: {mended}") from None


def first_principal(keytab: bytes) -> str:
    """Return the first principal of a keytab, as ``ada@LAKE.ORG``: MIT's programs take that one as well.

    Raises
    ------
    ValueError
        It is no keytab, or an empty one.
    """
    for principal, _ in _entries(keytab):
        return principal
    raise ValueError("there is no principal in it")


def keytab_for(keytab: bytes, principal: str) -> bytes:
    """Return a keytab with the keys of one principal, out of one with those of several.

    Raises
    ------
    ValueError
        It is no keytab, or has none of these.
    """
    keys = b"".join(entry for name, entry in _entries(keytab) if name == principal)
    if not keys:
        raise ValueError(f"there is no key of {principal} in it")
    return _KEYTAB_MAGIC + keys


def _entries(keytab: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield principal and key, as they stand there, of a keytab."""
    if keytab[:2] != _KEYTAB_MAGIC:
        raise ValueError("it does not begin as one")
    at = 2
    while at + _LENGTH_BYTES <= len(keytab):
        size = int.from_bytes(keytab[at : at + _LENGTH_BYTES], "big", signed=True)
        if not size:
            return
        end = at + _LENGTH_BYTES + abs(size)
        # What was removed has left a hole.
        if size > 0:
            yield _principal(keytab[at + _LENGTH_BYTES : end]), keytab[at:end]
        at = end


def _principal(entry: bytes) -> str:
    at = 2

    def counted() -> str:
        nonlocal at
        length = int.from_bytes(entry[at : at + 2], "big")
        text = entry[at + 2 : at + 2 + length]
        if not length or len(text) < length:
            raise ValueError("it ends too early")
        at += 2 + length
        return text.decode("utf-8")

    realm = counted()
    return f"{'/'.join(counted() for _ in range(int.from_bytes(entry[:2], 'big')))}@{realm}"


def java_options(environ: Mapping[str, str]) -> list[str]:
    """Return the options by which Java reads the settings that everybody else does: it does not know the variable."""
    paths = [path for path in environ.get(CONFIG_VARIABLE, "").split(":") if Path(path).is_file()]
    return [f"-Djava.security.krb5.conf={paths[0]}"] if paths else []


def nobody(environ: Mapping[str, str]) -> AuthenticationError:
    """Return the error for a cluster that wants Kerberos, and a process that has nothing to show."""
    cache = environ.get(CACHE_VARIABLE, "")
    kind, colon, _ = cache.partition(":")
    hint = f"; Java reads tickets from files only, but {CACHE_VARIABLE} is {cache}: set it to FILE:PATH, then run kinit"
    return AuthenticationError(
        "this cluster wants Kerberos, and you have no ticket that is valid: run kinit (klist shows what there is), or "
        f"let {KEYTAB_VARIABLE} name a keytab{hint if colon and kind != 'FILE' else ''}"
    )


class HttpAuth:
    """Proves over HTTP who one is (SPNEGO), for ``requests.Session.auth``.  Thread-safe.

    The package keeps what it has begun with a server for the answer: two threads at a time would mix theirs up.

    Raises
    ------
    ImportError
        The package requests-kerberos is missing.
    """

    def __init__(self) -> None:
        import requests_kerberos

        self._package: Any = requests_kerberos
        self._local = threading.local()

    def __call__(self, request: Any) -> Any:
        """Return a request that is asked again with a proof, where its answer wants one."""
        if not hasattr(self._local, "auth"):
            self._local.auth = self._package.HTTPKerberosAuth(mutual_authentication=self._package.OPTIONAL)
        return self._local.auth(request)
