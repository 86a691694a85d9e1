"""Find this process's Kerberos credentials, by the environment variables of MIT Kerberos.

``KRB5CCNAME`` names the cache with the ticket of ``kinit``, ``KRB5_CLIENT_KTNAME`` a keytab to use instead of a ticket,
``KRB5_CONFIG`` the settings of the realms.

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
    """Return path and first principal of the keytab to log in with; None if no variable names one.

    Raises
    ------
    ConfigError
        The file cannot be read, or is no keytab.
    """
    path = environ.get(KEYTAB_VARIABLE, "").removeprefix(_FILE)
    if not path:
        return None
    where, advice = f"{KEYTAB_VARIABLE} is {path}", "set it to a keytab that you can read, or unset it and run kinit"
    try:
        return path, first_principal(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"{where}, which cannot be read ({error.strerror}): {advice}") from None
    except (ValueError, IndexError) as error:
        raise ConfigError(f"{where}, which is no keytab ({error}): {advice}") from None


def first_principal(keytab: bytes) -> str:
    """Return the first principal of a keytab, such as ``ada@LAKE.ORG``; MIT's programs use the same.

    Raises
    ------
    ValueError
        The data is no keytab, or has no principal.
    """
    for principal, _ in _entries(keytab):
        return principal
    raise ValueError("it has no principal")


def keytab_for(keytab: bytes, principal: str) -> bytes:
    """Return a keytab with only one principal's keys of another keytab.

    Raises
    ------
    ValueError
        The data is no keytab, or has no key of the principal.
    """
    keys = b"".join(entry for name, entry in _entries(keytab) if name == principal)
    if not keys:
        raise ValueError(f"it has no key of {principal}")
    return _KEYTAB_MAGIC + keys


def _entries(keytab: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield (principal, the whole entry) for each entry of a keytab."""
    if keytab[:2] != _KEYTAB_MAGIC:
        raise ValueError("its first bytes are wrong")
    at = 2
    while at + _LENGTH_BYTES <= len(keytab):
        size = int.from_bytes(keytab[at : at + _LENGTH_BYTES], "big", signed=True)
        if not size:
            return
        end = at + _LENGTH_BYTES + abs(size)
        # A negative size is that of a removed entry.
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
    """Return the options that make Java read the file of KRB5_CONFIG, a variable that it ignores."""
    paths = [path for path in environ.get(CONFIG_VARIABLE, "").split(":") if Path(path).is_file()]
    return [f"-Djava.security.krb5.conf={paths[0]}"] if paths else []


def no_credentials(environ: Mapping[str, str]) -> AuthenticationError:
    """Return the error for a process without credentials on a cluster with Kerberos."""
    cache = environ.get(CACHE_VARIABLE, "")
    kind, colon, _ = cache.partition(":")
    hint = f"; Java reads tickets from files only, but {CACHE_VARIABLE} is {cache}: set it to FILE:PATH, then run kinit"
    return AuthenticationError(
        "this cluster requires Kerberos, and you have no valid ticket: run kinit (klist shows your tickets), or set "
        f"{KEYTAB_VARIABLE} to a keytab{hint if colon and kind != 'FILE' else ''}"
    )


class HttpAuth:
    """Authenticate over HTTP by Kerberos (SPNEGO), for ``requests.Session.auth``.  Thread-safe.

    The package keeps the state of a handshake in its object, so each thread has its own.

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
        """Return the request, which is repeated with a ticket if the server demands one."""
        if not hasattr(self._local, "auth"):
            self._local.auth = self._package.HTTPKerberosAuth(mutual_authentication=self._package.OPTIONAL)
        return self._local.auth(request)
