"""Keep the newest certificate in the server's TLS context, from a Secret of the webhook's own or from files.

`CertificateSecret` makes and renews the certificate, keeps it in a Secret that all replicas share, and registers its
authority with the API server before the certificate is used. `CertificateFolder` follows files that someone else renews
(cert-manager, which then also fills in caBundle). Keys are never written to a disk by this program.

A pair is a server certificate with its key. It is signed by an authority of its own, whose key is discarded at once, so
that no second certificate can be signed with it. Authorities of earlier pairs stay trusted until they expire, so that a
renewal fails no request.
Source: Kubernetes admission webhooks (serverName `<service>.<namespace>.svc`, caBundle of several certificates).
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import secrets
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dra_driver.base.errors import ApiError, DriverError, NodeError
from dra_driver.base.telemetry.logs import Loop, fields
from dra_driver.base.wire import Wire
from dra_driver.kube.api import KubeApi
from dra_driver.kube.kubeconfig import secret_file
from dra_driver.kube.paths import WEBHOOKS, named, secret_path

LIFE = timedelta(days=90)
RENEW_BEFORE = LIFE / 3
_SKEW = timedelta(minutes=5)  # tolerated difference between the clocks of API servers
_MAX_AUTHORITIES = 3
log = logging.getLogger(__name__)

CHECK_SECONDS = 60.0
RETRY_SECONDS = 5.0
_MAX_FILE = 1 << 20  # bytes of a certificate or key in a folder
_CONFLICTS = (404, 409)
_KEYS = {"certificate": "tls.crt", "key": "tls.key", "authorities": "ca.crt"}


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


class CertificateSource(Protocol):
    """A source of certificates."""

    def current(self) -> CertificatePair:
        """Return the pair to serve with. Raises: DriverError."""


class CertificateSecret:
    """A Secret with a certificate that the webhook makes, and that API servers trust by the webhook's configuration."""

    def __init__(
        self,
        api: KubeApi,
        *,
        namespace: str,
        secret: str,
        configuration: str,
        names: Sequence[str],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api, self._names, self._now = api, names, now
        self._secret = secret_path(namespace, secret)
        self._configuration = named(WEBHOOKS, configuration)

    def current(self) -> CertificatePair:
        """Read the pair, renew it if it is due, and make sure that the API server trusts it. Raises: ApiError."""
        secret = self._api.request("GET", self._secret)
        pair = _pair_of(secret)
        if why := renewal_reason(pair, self._names, self._now()):
            pair = make_certificate_pair(self._names, self._now(), pair.authorities)
            data = {key: base64.b64encode(getattr(pair, field).encode()).decode() for field, key in _KEYS.items()}
            self._api.request("PUT", self._secret, body={**secret, "data": {**(secret.get("data") or {}), **data}})
            log.info("certificate made", extra=fields(reason=why))
        self._trust(pair.authorities)
        return pair

    def _trust(self, authorities: str) -> None:
        configuration = self._api.request("GET", self._configuration)
        bundle = base64.b64encode(authorities.encode()).decode()
        webhooks = configuration.get("webhooks") or []
        if all(webhook["clientConfig"].get("caBundle") == bundle for webhook in webhooks):
            return
        for webhook in webhooks:
            webhook["clientConfig"]["caBundle"] = bundle
        self._api.request("PUT", self._configuration, body=configuration)


class CertificateFolder:
    """A folder with a certificate that someone else renews: `tls.crt` and `tls.key`, as Secrets are mounted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def current(self) -> CertificatePair:
        """Read the files. Raises: NodeError("node.certificate")."""
        try:
            return CertificatePair(_text_of(self._folder / "tls.crt"), _text_of(self._folder / "tls.key"), "")
        except (OSError, ValueError) as error:
            raise NodeError("certificate", f"no certificate in {self._folder}: {error}") from error


def _text_of(path: Path) -> str:
    """Return the text of a certificate's file, without waiting for a FIFO. Raises: OSError, ValueError."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - a descriptor
        content = file.read(_MAX_FILE + 1)
    if len(content) > _MAX_FILE:
        raise ValueError(f"{path.name} is larger than {_MAX_FILE >> 20} MiB")
    return content.decode()


class ServingIdentity:
    """The TLS context, in which a thread keeps the certificate that `source` returns."""

    def __init__(
        self, source: CertificateSource, *, check_s: float = CHECK_SECONDS, retry_s: float = RETRY_SECONDS
    ) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._source, self._check_s, self._retry_s = source, check_s, retry_s
        self._served: CertificatePair | None = None
        self._loop = Loop("certificate", self._turn, failure="certificate not renewed", fault_s=retry_s)
        self.fault = "no certificate yet"

    def start(self) -> None:
        """Start the thread that looks for new certificates."""
        self._loop.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End the thread."""
        self._loop.stop(timeout_s)

    def reload(self) -> None:
        """Load the newest certificate. Raises: DriverError."""
        pair = self._source.current()
        if pair != self._served:
            try:
                load_certificate_pair(self.context, pair)
            except (ssl.SSLError, OSError) as error:
                raise NodeError("certificate", f"the certificate can't be used: {error}") from error
            self._served = pair
            log.info("certificate in use")
        self.fault = ""

    def _turn(self) -> float:
        try:
            self.reload()
        except DriverError as error:
            if isinstance(error, ApiError) and error.status in _CONFLICTS:
                log.info(
                    "certificate not written: another replica wrote first, or an object does not exist yet",
                    extra=fields(err=str(error)),
                )
            else:
                log.warning("certificate not renewed", extra=fields(code=error.code, err=str(error)))
            if self._served is None:
                self.fault = f"{error.message} [{error.code}]"
            return self._retry_s
        return self._check_s


def load_certificate_pair(context: ssl.SSLContext, pair: CertificatePair) -> None:
    """Load a pair into a TLS context without writing a file to disk, although OpenSSL's loader accepts only paths."""
    with secret_file(pair.certificate.encode()) as certificate, secret_file(pair.key.encode()) as key:
        context.load_cert_chain(certificate.path, key.path)


def _pair_of(secret: Wire) -> CertificatePair:
    data = secret.get("data") or {}

    def text(key: str) -> str:
        try:
            return base64.b64decode(data.get(key) or "", validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return ""

    return CertificatePair(**{field: text(key) for field, key in _KEYS.items()})
