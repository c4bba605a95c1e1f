"""NodeProcess: the drivers of one node in one process, and what they share.

They share the status page, the signals and the end. Everything else belongs to one driver (`driver_lifecycle`). While
one driver has work, the page shows that driver's figures; with several, each answer names the driver.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dra_driver import __version__
from dra_driver.base.errors import ExitCode
from dra_driver.base.telemetry import logs
from dra_driver.base.telemetry.exposition import FamilyHead, SampleKind, labels_text, sample_line
from dra_driver.base.telemetry.logs import StopRequest
from dra_driver.node.daemon.driver_lifecycle import DriverLifecycle
from dra_driver.node.daemon.options import Options

if TYPE_CHECKING:
    from dra_driver.kube.api import KubeApi
    from dra_driver.node.daemon.status_page import StatusPage

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
END_SECONDS = 25.0  # how long the drivers together may take to end in order


class NodeProcess:
    """The drivers of one node."""

    def __init__(self, drivers: Sequence[Options]) -> None:
        self._decide = threading.Event()
        self._lives = [DriverLifecycle(options, changed=self._decide.set) for options in drivers]
        self._page: StatusPage | None = None

    def run(self, stop: StopRequest) -> int:
        """Serve until asked to stop, and return the exit status; if a new process is needed, replace this one.

        Raises: the error of a driver, if none can start or go on; DriverError if there can be no status page.
        """
        must_restart = False
        try:
            self._page = self._open_page()
            for life in self._lives:
                life.start()
            while not must_restart and not stop.wait(POLL_SECONDS):
                must_restart = self._must_restart()
        finally:
            self._end()
        if must_restart and not stop.is_set():
            log.info("restarting the process")
            logs.finish()
            os.execv(sys.executable, [sys.executable, "-m", "dra_driver", *sys.argv[1:]])
        sys.stderr.flush()
        return ExitCode.OK

    def pause(self) -> None:
        """Release the vendors' libraries, so that kernel drivers can be unloaded."""
        for life in self._lives:
            if life.agent is not None:
                life.agent.pause()

    def resume(self) -> None:
        """Use the hardware again after `pause`."""
        for life in self._lives:
            if life.agent is not None:
                life.agent.resume()

    def _must_restart(self) -> bool:
        """Return whether a new process is needed. Raises: the error of the first driver if none could start."""
        if not self._decide.is_set():
            return False
        self._decide.clear()
        errors = [life.error for life in self._lives if life.error is not None]
        if errors and all(life.is_idle or life.error is not None for life in self._lives):
            raise errors[0]
        return any(life.must_restart for life in self._lives)

    def _end(self) -> None:
        """End all drivers at once; one that hangs is left behind."""
        for life in self._lives:
            life.end()
        until = time.monotonic() + END_SECONDS
        for life in self._lives:
            if not life.wait(max(0.0, until - time.monotonic())):
                log.error("driver did not end in time: %s", life.options.driver)
        if self._page is not None:
            self._page.stop()

    # -- the status page -----------------------------------------------------------------------------------------------

    def unready(self) -> tuple[str, ...]:
        """Return why the busy drivers are not ready, each reason with its driver if there are several."""
        busy = [life for life in self._lives if not life.is_idle]
        if len(busy) == 1:
            return busy[0].problems()
        return tuple(f"{life.options.driver}: {reason}" for life in busy for reason in life.problems())

    def metrics(self) -> bytes:
        """Return the metrics of all drivers; with several, each sample names its driver."""
        running = {life.options.driver: life.agent for life in self._lives if life.agent is not None}
        if not running:
            return _idle_metrics(self._lives[0].vendor)
        from dra_driver.base.telemetry.metrics import render_joined

        pages = {driver: agent.metrics for driver, agent in running.items() if agent.metrics is not None}
        if len(pages) == 1:
            return next(iter(pages.values())).render()
        return render_joined(pages)

    def review_api(self) -> KubeApi:
        """Return the client by which readers of metrics are reviewed. Raises: DriverError for unusable credentials."""
        from dra_driver.kube import api
        from dra_driver.kube.credentials import load_credentials

        return api.KubeApi(load_credentials(self._lives[0].options.kubeconfig))

    def _open_page(self) -> StatusPage | None:
        """Begin to answer probes, because a kubelet keeps restarting an agent that does not answer.

        Raises: DriverError.
        """
        options = self._lives[0].options
        if not options.status.is_served:
            return None
        from dra_driver.node.daemon.status_page import StatusPage

        page = StatusPage(options.status, self)
        page.start()
        return page


def _idle_metrics(vendor: str) -> bytes:
    """Return the metrics of an agent that has nothing to do, as Prometheus' text."""
    labels = labels_text((("version", __version__), ("vendor", vendor)))
    rows = (
        ("build_info", "Version and vendor.", labels, 1.0),
        ("registered", "1 while the kubelet has accepted the registration.", "", 0.0),
        ("prepared_claims", "Claims in the ledger.", "", 0.0),
    )
    lines = []
    for name, meaning, pairs, value in rows:
        head = FamilyHead(f"dra_driver_{name}", SampleKind.GAUGE, meaning)
        lines += [*head.lines(), sample_line(head.name, pairs, value)]
    return "\n".join([*lines, ""]).encode()
