"""
Makes a TLS certificate for localhost when the emulators start, because some SDKs insist on TLS.

A new certificate authority signs the certificate, which is valid only for this machine's loopback. After that, the authority's
private key is discarded. So a client that trusts the authority trusts these emulators and nothing else, now and later.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cosmos_outbox_emulators.usage import UsageError

AUTHORITY = "ca.pem"
_SERVER = "server.pem"
_VALID = timedelta(
    days=820
)  # Apple's systems refuse a server's certificate that is valid for more than 825 days
_NAMES = ("localhost",)
_ADDRESSES = ("127.0.0.1", "::1")


def server_context(folder: Path) -> ssl.SSLContext:
    """
    Return the TLS context of a server, with the certificate in this folder. Make a new certificate if the folder has none or if
    the certificate has expired.

    Raises:
        UsageError: the extra `tls` is not installed, or the certificate cannot be read or written.
    """
    try:
        if not _is_valid(folder):
            _make(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / _SERVER)
    except ImportError as error:
        raise UsageError(
            "TLS needs the package cryptography: pip install 'cosmos-outbox-emulators[tls]'"
        ) from error
    except (OSError, ValueError) as error:  # ssl.SSLError, which a broken certificate causes, is an OSError
        raise UsageError(f"cannot make or read the TLS certificate in {folder}: {error}") from error
    return context


def _is_valid(folder: Path) -> bool:
    if not ((folder / AUTHORITY).exists() and (folder / _SERVER).exists()):
        return False
    from cryptography.x509 import load_pem_x509_certificate  # noqa: PLC0415  # of the extra `tls`

    return load_pem_x509_certificate((folder / _SERVER).read_bytes()).not_valid_after_utc > datetime.now(UTC)


def _make(folder: Path) -> None:
    from cryptography import x509  # noqa: PLC0415  # of the extra `tls`
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID  # noqa: PLC0415

    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cosmos-outbox-emulators, of one start")])
    now = datetime.now(UTC)

    def build(subject: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        of_authority = authority_key.public_key()
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))  # the clock in a client's container may be slow
            .not_valid_after(now + _VALID)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(of_authority), critical=False)
        )

    def usage(*, signs_certificates: bool) -> x509.KeyUsage:
        return x509.KeyUsage(
            digital_signature=not signs_certificates,
            key_cert_sign=signs_certificates,
            crl_sign=signs_certificates,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )

    names = [
        *(x509.DNSName(name) for name in _NAMES),
        *(x509.IPAddress(ip_address(address)) for address in _ADDRESSES),
    ]
    root = (
        build(authority, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(signs_certificates=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        build(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]), key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / AUTHORITY).write_bytes(root.public_bytes(pem))
    server = folder / _SERVER
    server.touch(mode=0o600)
    server.write_bytes(private + certificate.public_bytes(pem))
