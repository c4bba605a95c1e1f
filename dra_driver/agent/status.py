"""Status page: /metrics for Prometheus, /healthz and /readyz for the kubelet's probes."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dra_driver.model.errors import NodeError, UsageError
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.port import Port
from dra_driver.telemetry.probes import QUICK_PAGES, probe_pages

log = logging.getLogger(__name__)


def parse_address(text: str) -> tuple[str, int]:
    """Return the host and port in `HOST:PORT`, `:PORT` or `[v6]:PORT`. Raises: UsageError("usage.address")."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UsageError("address", f"--metrics-address={text!r} is not HOST:PORT", hint="for example 127.0.0.1:9400")
    return host.strip("[]"), int(port)


class StatusPage:
    """Serves what the two callables return at the moment of the request.

    `readiness` returns the reasons why the agent is not ready; an empty tuple means ready.
    """

    def __init__(self, address: str, *, metrics: Callable[[], bytes], readiness: Callable[[], tuple[str, ...]]) -> None:
        host, port = parse_address(address)
        pages = probe_pages(metrics=metrics, readiness=readiness)
        try:
            self._server = Port((host, port), pages, quick=QUICK_PAGES)
        except OSError as error:
            raise NodeError("metrics-address", f"cannot listen on --metrics-address={address}: {error}") from error
        self.port = self._server.number
        self._address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def start(self) -> None:
        """Begin answering."""
        self._server.start()
        log.info("status page open", extra=fields(address=self._address))

    def stop(self) -> None:
        """Stop answering and free the port."""
        self._server.stop()
