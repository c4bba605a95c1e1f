"""Status options: where metrics and probes are served, and to whom.

They are read before any server code is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dra_driver.model.errors import UsageError


@dataclass(frozen=True, slots=True)
class StatusOptions:
    """Where the pages are served, and who may read /metrics. An empty address means that the page is not served."""

    metrics_address: str = ""
    probe_address: str = ""
    certificate: Path | None = None  # folder of the certificate with which /metrics is served
    has_known_readers: bool = False  # whether the API server is asked who may scrape

    @property
    def is_served(self) -> bool:
        """Return whether any page is served."""
        return bool(self.metrics_address or self.probe_address)


def parse_address(text: str, flag: str = "--metrics-address") -> tuple[str, int]:
    """Return the host and port in `HOST:PORT`, `:PORT` or `[v6]:PORT`. Raises: UsageError("usage.address")."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UsageError("address", f"{flag}={text!r} is not HOST:PORT", hint="for example 127.0.0.1:9400")
    return host.strip("[]"), int(port)
