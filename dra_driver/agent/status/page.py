"""Status pages: /metrics for Prometheus, /healthz and /readyz for the kubelet's probes, on one port or on two."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from dra_driver.agent.status.options import StatusOptions, parse_address
from dra_driver.agent.status.source import StatusSource
from dra_driver.model.errors import NodeError
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.port import Page, PageAccess, Port, SocketEncryption
from dra_driver.telemetry.probes import QUICK_PAGES, PageResponse, probe_pages

log = logging.getLogger(__name__)


class StatusPage:
    """Serves the answers of a source.

    Probes that have their own address are not answered on the port of the metrics. They are neither encrypted nor
    reviewed, because the kubelet has no token and they show no figures.
    """

    def __init__(self, options: StatusOptions, source: StatusSource) -> None:
        pages = dict(probe_pages(metrics=source.metrics, readiness=source.unready))
        self._ports: list[Port] = []
        self.port = self.probe_port = 0
        if options.probe_address:
            ready = {"/readyz": pages.pop("/readyz")}
            self._ports.append(_listening("--probe-address", options.probe_address, ready, QUICK_PAGES))
            self.probe_port = self._ports[0].number
        if options.metrics_address:
            quick = {} if options.probe_address else QUICK_PAGES
            self._ports.append(
                _listening(
                    "--metrics-address",
                    options.metrics_address,
                    pages,
                    quick,
                    encryption=_encryption(options),
                    access=_access(options, source),
                )
            )
            self.port = self._ports[-1].number

    def start(self) -> None:
        """Begin answering."""
        for port in self._ports:
            port.start()
        for port in self._ports:
            log.info("status page open", extra=fields(address=port.address))

    def stop(self) -> None:
        """Stop answering and free the ports."""
        for port in self._ports:
            port.stop()


def _listening(
    flag: str,
    address: str,
    pages: Mapping[str, Page],
    quick: Mapping[str, PageResponse],
    *,
    encryption: SocketEncryption | None = None,
    access: PageAccess | None = None,
) -> Port:
    """Return a port that is bound. Raises: UsageError; NodeError("node.metrics-address")."""
    try:
        return Port(parse_address(address, flag), pages, quick=quick, encryption=encryption, access=access)
    except OSError as error:
        raise NodeError("metrics-address", f"cannot listen on {flag}={address}: {error}") from error


def _encryption(options: StatusOptions) -> SocketEncryption | None:
    if options.certificate is None:
        return None
    from dra_driver.telemetry.encryption import MountedCertificate  # noqa: PLC0415 - only where it is wanted

    return MountedCertificate(options.certificate)


def _access(options: StatusOptions, source: StatusSource) -> PageAccess | None:
    if not options.has_known_readers:
        return None
    from dra_driver.agent.status.readers import MetricsReaders  # noqa: PLC0415 - only where it is wanted

    return MetricsReaders(source)
