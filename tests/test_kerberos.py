"""What this process has to show to Kerberos, and what is said where it has nothing."""

from __future__ import annotations

import struct
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from eps.errors import ConfigError
from eps.hadoop.kerberos import HttpAuth, first_principal, java_options, keytab_for, keytab_of, no_credentials


def text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


def entry(realm: str, *names: str) -> bytes:
    """One key, as MIT's programs write it; what follows the principal's names is not looked at."""
    data = struct.pack(">H", len(names)) + text(realm) + b"".join(map(text, names)) + b"\0\0\0\1" + bytes(12)
    return struct.pack(">i", len(data)) + data


ADA, SERVICE = entry("LAKE.ORG", "ada"), entry("LAKE.ORG", "hdfs", "nn.lake.org")
HOLE = struct.pack(">i", -len(ADA)) + bytes(len(ADA))


@pytest.mark.parametrize(
    ("keytab", "principal"),
    [
        (b"\x05\x02" + ADA + SERVICE, "ada@LAKE.ORG"),
        (b"\x05\x02" + SERVICE + ADA, "hdfs/nn.lake.org@LAKE.ORG"),
        (b"\x05\x02" + HOLE + SERVICE, "hdfs/nn.lake.org@LAKE.ORG"),
    ],
)
def test_the_first_principal_of_a_keytab_logs_in(tmp_path: Path, keytab: bytes, principal: str) -> None:
    assert first_principal(keytab) == principal
    path = tmp_path / "a.keytab"
    path.write_bytes(keytab)
    for named in (str(path), f"FILE:{path}"):
        assert keytab_of({"KRB5_CLIENT_KTNAME": named}) == (str(path), principal)


def test_the_keys_of_one_are_taken_out_of_those_of_several() -> None:
    keytab = b"\x05\x02" + SERVICE + ADA + HOLE + SERVICE + ADA
    assert keytab_for(keytab, "ada@LAKE.ORG") == b"\x05\x02" + ADA + ADA
    with pytest.raises(ValueError, match=r"eve@LAKE\.ORG"):
        keytab_for(keytab, "eve@LAKE.ORG")


@pytest.mark.parametrize("content", [b"", b"-----BEGIN", b"\x05\x02", b"\x05\x02" + bytes(40), b"\x05\x02" + ADA[:12]])
def test_what_is_no_keytab_is_refused_by_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.keytab"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"a\.keytab, which is no keytab"):
        keytab_of({"KRB5_CLIENT_KTNAME": str(path)})
    with pytest.raises(ConfigError, match=r"none, .*No such file"):
        keytab_of({"KRB5_CLIENT_KTNAME": str(tmp_path / "none")})


def test_without_a_keytab_nothing_is_read() -> None:
    assert keytab_of({}) is None


def test_java_reads_the_settings_that_everybody_reads(tmp_path: Path) -> None:
    settings = tmp_path / "krb5.conf"
    settings.write_text("[libdefaults]\n")
    assert java_options({}) == [] == java_options({"KRB5_CONFIG": str(tmp_path / "none")})
    assert java_options({"KRB5_CONFIG": f"{tmp_path}/none:{settings}"}) == [f"-Djava.security.krb5.conf={settings}"]


def test_who_has_no_ticket_is_told_what_to_do() -> None:
    for environ in ({}, {"KRB5CCNAME": "FILE:/tmp/krb5cc_0"}, {"KRB5CCNAME": "/tmp/krb5cc_0"}):
        said = str(no_credentials(environ))
        assert "run kinit" in said and "KRB5_CLIENT_KTNAME" in said and "files only" not in said
    assert "files only, but KRB5CCNAME is KCM:0: set it to FILE:PATH" in str(no_credentials({"KRB5CCNAME": "KCM:0"}))


def test_each_thread_proves_by_itself_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def make(mutual_authentication: object) -> object:
        made.append(threading.get_ident())
        return lambda request: (request, threading.get_ident())

    fake = SimpleNamespace(OPTIONAL=2, HTTPKerberosAuth=make)
    monkeypatch.setitem(sys.modules, "requests_kerberos", fake)
    auth = HttpAuth()
    assert auth("a") == auth("a") == ("a", threading.get_ident())
    other = threading.Thread(target=auth, args=("b",))
    other.start()
    other.join()
    assert len(made) == 2 == len(set(made)), "two threads share nothing, and one keeps what it has"
