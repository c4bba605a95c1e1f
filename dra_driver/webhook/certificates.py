"""Make, check and renew the webhook's certificates. Pure except for randomness; the time is an argument.

A pair is a server certificate with its key. It is signed by an authority of its own, whose key is discarded at once, so
that no second certificate can be signed with it. Authorities of earlier pairs stay trusted until they expire, so that a
renewal fails no request.
Source: Kubernetes admission webhooks (serverName `<service>.<namespace>.svc`, caBundle of several certificates).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE = timedelta(days=90)
RENEW_BEFORE = LIFE / 3
_SKEW = timedelta(minutes=5)  # tolerated difference between the clocks of API servers
_MAX_AUTHORITIES = 3


@dataclass(frozen=True, slots=True)
class CertificatePair:
    """PEM texts: the server's certificate, its key, and the authorities that sign for it."""

    certificate: str
    key: str
    authorities: str


def make_certificate_pair(names: Sequence[str], now: datetime, trusted: str = "") -> CertificatePair:
    """Make a pair for some DNS names. `trusted` are authorities of earlier pairs."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    # Each authority has a unique name: TLS looks authorities up by name, and a bundle holds several.
    name = f"dra-driver webhook {secrets.token_hex(8)}"
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    authority = (
        _builder(issuer, issuer, now, now + LIFE, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    certificate = (
        _builder(subject, issuer, now, now + LIFE, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    key_pem = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    earlier = [one.public_bytes(pem).decode() for one in _read(trusted) if one.not_valid_after_utc > now]
    bundle = [authority.public_bytes(pem).decode(), *earlier][:_MAX_AUTHORITIES]
    return CertificatePair(certificate.public_bytes(pem).decode(), key_pem.decode(), "".join(bundle))


def renewal_reason(pair: CertificatePair, names: Sequence[str], now: datetime) -> str:
    """Return why a pair has to be renewed; "" if it can still be used."""
    found = _read(pair.certificate)
    if not found or not pair.key or not _read(pair.authorities):
        return "there is no complete pair yet"
    try:
        known = found[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return "it is not for any DNS name"
    if missing := set(names) - set(known.get_values_for_type(x509.DNSName)):
        return f"it is not for {', '.join(sorted(missing))}"
    if found[0].not_valid_after_utc - now < RENEW_BEFORE:
        return f"it ends on {found[0].not_valid_after_utc:%Y-%m-%d}"
    return "" if _fits(found[0], pair.key) else "its key does not belong to it"


def _read(text: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(text.encode())
    except ValueError:
        return []


def _fits(certificate: x509.Certificate, key_pem: str) -> bool:
    try:
        key = serialization.load_pem_private_key(key_pem.encode(), password=None)
    except (ValueError, TypeError):
        return False
    return key.public_key() == certificate.public_key()


def _builder(
    subject: x509.Name, issuer: x509.Name, now: datetime, end: datetime, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(end)
    )


def _usage(*, key_cert_sign: bool = False, digital_signature: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
