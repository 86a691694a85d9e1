"""A job's certificates: an authority whose key is never stored, and the one certificate that it signs.

All processes of a job run as one user and trust each other, so they share a certificate.  The authority's key is
discarded at once, so that no second certificate can be signed.
"""

from __future__ import annotations

import datetime
import shutil
import tempfile
from pathlib import Path

from eps.errors import ConfigError, StorageError
from eps.net.security.credentials import TLS_NAME, TlsFiles
from eps.storage.atomic import write_bytes_atomic

#: Longer than any job; the key is in the job's directory and is removed with it.
VALID_DAYS = 3650
#: Tolerance for clocks of other machines that are behind.
VALID_BEFORE_HOURS = 1


def check_tls() -> None:
    """Refuse TLS if the package that creates certificates is missing.

    Raises
    ------
    ConfigError
        The package ``cryptography`` is missing.
    """
    try:
        from cryptography import x509

        _ = x509.CertificateBuilder
    except ImportError as error:
        raise ConfigError(
            f"TLS (YARN, --tls, --van tcp, serve --listen) needs the package cryptography ({error}): "
            "pip install '.[tls]' in EPS's folder"
        ) from None


def make_certificates(directory: Path, now: datetime.datetime | None = None) -> TlsFiles:
    """Create the certificates of a job, with the name :data:`~eps.net.security.credentials.TLS_NAME`.

    They use EC keys on P-256, for TLS 1.3.

    Parameters
    ----------
    directory : Path
        Created; it and the key's file are accessible to the user only.
    now : datetime, optional
        The certificates are valid from an hour before; default: the clock.

    Returns
    -------
    TlsFiles

    Raises
    ------
    ConfigError
        The package ``cryptography`` is missing.
    StorageError
        A file cannot be written.

    Source
    ------
    RFC 5280 (extensions of authority and leaf).  Deviation: no revocation; a job's certificates end with the job.
    """
    check_tls()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def usage(*, signs: bool, certifies: bool) -> x509.KeyUsage:
        return x509.KeyUsage(
            digital_signature=signs, key_cert_sign=certifies, crl_sign=certifies, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
            decipher_only=False,
        )  # fmt: skip

    def builder(subject: str, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name(f"{TLS_NAME} authority"))
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(first)
            .not_valid_after(first + datetime.timedelta(days=VALID_DAYS))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        )

    first = (now or datetime.datetime.now(datetime.UTC)) - datetime.timedelta(hours=VALID_BEFORE_HOURS)
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    authority = (
        builder(f"{TLS_NAME} authority", authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(signs=False, certifies=True), critical=True)
        .add_extension(authority_id, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    both_ends = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    certificate = (
        builder(TLS_NAME, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(signs=True, certifies=False), critical=True)
        .add_extension(both_ends, critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(TLS_NAME)]), critical=False)
        .add_extension(authority_id, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    try:
        # Atomic: the existence of the folder means that the certificates are complete.
        coming = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
        files = TlsFiles.within(coming)
        for path, content in (
            (files.ca, authority.public_bytes(pem)),
            (files.certificate, certificate.public_bytes(pem)),
            (files.key, private),
        ):
            write_bytes_atomic(path, content)
        shutil.rmtree(directory, ignore_errors=True)
        coming.rename(directory)
    except OSError as error:
        raise StorageError(f"{directory}: cannot be created: {error.strerror}") from error
    return TlsFiles.within(directory)
