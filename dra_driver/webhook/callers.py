"""Callers: who may ask for reviews, in clusters whose API servers can prove who they are.

In: a file with the authorities of client certificates, and the names that are admitted. Out: a TLS context that asks
for such certificates, and why a caller is refused. Without a file everyone may ask: most API servers send no
certificate. Probes and metrics need none, because kubelets and Prometheus have none.
Source: Kubernetes, "Authenticate apiservers" (AdmissionConfiguration, kubeConfigFile).
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dra_driver.model.errors import NodeError


class Callers:
    """The callers that may ask for reviews: those with a certificate of `authorities` for one of `names`."""

    def __init__(self, authorities: Path | None = None, names: tuple[str, ...] = ()) -> None:
        self._authorities, self._names = authorities, names

    def prepare(self, context: ssl.SSLContext) -> None:
        """Make a TLS context ask for client certificates. Raises: NodeError("node.client-authorities")."""
        if self._authorities is None:
            return
        try:
            context.load_verify_locations(self._authorities)
        except (OSError, ssl.SSLError) as error:
            raise NodeError(
                "client-authorities", f"the authorities in {self._authorities} can't be used: {error}",
                hint="expected PEM certificates of the authorities that sign client certificates for API servers",
            ) from error  # fmt: skip
        context.verify_mode = ssl.CERT_OPTIONAL

    def refusal(self, certificate: Mapping[str, Any] | None) -> str:
        """Return why a caller with this certificate, which the handshake has verified, is refused; "" if it may ask."""
        if self._authorities is None:
            return ""
        if not certificate:
            return "a client certificate is needed"
        if not self._names or names_of(certificate) & set(self._names):
            return ""
        return "the client certificate names no caller that may ask"


def names_of(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the common name and the DNS names of a certificate, as `ssl` describes one that it has verified."""
    found = certificate or {}
    common = {value for part in found.get("subject", ()) for key, value in part if key == "commonName"}
    return frozenset(common | {value for kind, value in found.get("subjectAltName", ()) if kind == "DNS"})
