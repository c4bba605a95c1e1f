"""The TLS material for connections to the API server, and how to notice that its files were replaced.

In: file names or PEM texts. Out: an ssl.SSLContext. Keys that were given inline are never written to a disk.
"""

from __future__ import annotations

import ssl
from contextlib import ExitStack
from dataclasses import dataclass, field

from dra_driver.kube.credentials.secret_file import secret_file
from dra_driver.model.stamp import Stamp, stamp_of


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """Certificates in files or inline (PEM); inline ones win. Without a CA, the system's CAs are used."""

    ca_file: str = ""
    ca_pem: str = field(default="", repr=False)
    cert_file: str = ""
    key_file: str = ""
    cert_pem: bytes = field(default=b"", repr=False)
    key_pem: bytes = field(default=b"", repr=False)
    server_name: str = ""
    is_unverified: bool = False

    def stamp(self) -> tuple[Stamp | None, ...]:
        """Return a value that changes when one of the files was replaced or rewritten."""
        return tuple(stamp_of(name) for name in (self.ca_file, self.cert_file, self.key_file) if name)

    def context(self) -> ssl.SSLContext:
        """Build a client context. Raises: OSError (ssl.SSLError is one) for files that are missing or not PEM."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols(["http/1.1"])
        if self.is_unverified:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif self.ca_pem:
            context.load_verify_locations(cadata=self.ca_pem)
        elif self.ca_file:
            context.load_verify_locations(cafile=self.ca_file)
        else:
            context.load_default_certs()
        if self.cert_pem or self.cert_file:
            self._load_client_certificate(context)
        return context

    def _load_client_certificate(self, context: ssl.SSLContext) -> None:
        """Load certificate and key. OpenSSL reads only files, so inline ones go through anonymous memory."""
        with ExitStack() as files:
            cert = files.enter_context(secret_file(self.cert_pem)).path if self.cert_pem else self.cert_file
            key = files.enter_context(secret_file(self.key_pem)).path if self.key_pem else self.key_file
            context.load_cert_chain(cert, key or None)
