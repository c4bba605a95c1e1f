"""NodeProcess: the drivers of one node in one process, each with a life of its own, and what they share.

They share the status page, the signals and the end. While one driver has work, the page shows that driver's figures;
with several, each answer names the driver. Everything else belongs to one driver, which lives in a thread of its own
from the first detection of its hardware to its end. Until the hardware is there, or the driver's ledger has claims, no
code of the driver is loaded. A driver that hangs in its hardware, or that can't start, does not hold up another one:
each has its own agent, with its own parts, threads, locks, sockets and ledger.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dra_driver import __version__
from dra_driver.base.errors import DriverError, ExitCode
from dra_driver.base.telemetry import logs
from dra_driver.base.telemetry.logs import PartThread, StopRequest, fields
from dra_driver.hardware.choose import choose
from dra_driver.hardware.metered import FamilyHead, SampleKind, labels_text, sample_line
from dra_driver.hardware.pci import vendors_on_bus
from dra_driver.hardware.port import Hardware
from dra_driver.node.daemon.options import Options

if TYPE_CHECKING:
    from dra_driver.kube.api import KubeApi
    from dra_driver.node.daemon.node import NodeAgent
    from dra_driver.node.daemon.status_page import StatusPage


IDLE_SECONDS = 2.0
AGAIN_SECONDS = 10.0  # seconds between two attempts to start, while other drivers of the process run


class DriverLifecycle:
    """The life of one driver. `changed` is called when a property has changed, so that the process can decide."""

    def __init__(self, options: Options, *, changed: Callable[[], None]) -> None:
        self.options = options
        self._changed = changed
        self._ended = threading.Event()
        self._over = threading.Event()
        self._thread = PartThread(f"driver-{options.driver}", self._run)
        self._hardware: Hardware | None = None
        self.agent: NodeAgent | None = None  # None until there is something to do
        self.error: Exception | None = None  # why the last attempt to start failed
        self.must_restart = False  # whether the driver can only continue in a new process
        self._has_started = False  # whether every part of the agent that does not depend on the role has started
        self.is_idle = False  # whether this driver has nothing to do, as far as is known

    @property
    def vendor(self) -> str:
        """Return the vendor's name, as far as it is known before its hardware is there."""
        return self._hardware.vendor if self._hardware is not None else self.options.vendor

    def start(self) -> None:
        """Begin, in a thread that does not keep the process alive. Raises: NodeError("node.thread")."""
        self._thread.start()

    def end(self) -> None:
        """Ask the driver to end; `wait` waits for it."""
        self._thread.release()
        self._ended.set()

    def wait(self, seconds: float) -> bool:
        """Wait for the driver to shut down; return whether it has, which is also true if its agent never started."""
        return self.agent is None or self._over.wait(seconds)

    def problems(self) -> tuple[str, ...]:
        """Return why the driver is not ready; empty while it has nothing to do."""
        if self.error is not None:
            return (f"cannot start: {self.error}",)
        if self.agent is not None and self._has_started:
            return self.agent.unready()
        return () if self.is_idle else ("it is starting",)

    def _run(self, _thread: PartThread) -> None:
        try:
            while self._await_work() and not self._serve():
                if self._ended.wait(AGAIN_SECONDS):
                    break
        except Exception as error:  # without this thread, the driver would never work again
            self._fail(error)
            raise
        finally:
            self._over.set()

    def _await_work(self) -> bool:
        """Wait until there is a GPU, or a claim to be undone.

        Return False if the driver is asked to end before that.
        """
        while not self._has_work():
            if not self.is_idle and self.error is None:
                keys = fields(node=self.options.node, driver=self.options.driver)
                log.info("no GPU on this node and no claims: idle until one appears", extra=keys)
            self.is_idle = self.error is None
            if self._ended.wait(IDLE_SECONDS):
                return False
        self.is_idle = False
        return not self._ended.is_set()

    def _has_work(self) -> bool:
        if has_claims(self.options.data_dir):
            return True
        if self.options.waits_for_bus and not self._is_on_bus():
            return False
        try:
            return self._open_hardware().is_present()
        except DriverError as error:
            self._fail(error)
            return False

    def _is_on_bus(self) -> bool:
        return any(vendor.driver == self.options.driver for vendor in vendors_on_bus(self.options.roots))

    def _open_hardware(self) -> Hardware:
        if self._hardware is None:
            options = self.options
            self._hardware = choose(options.hardware, options.roots, node_name=options.node, state_dir=options.data_dir)
        return self._hardware

    def _serve(self) -> bool:
        """Create the agent and run it; return False if a part could not start and another attempt makes sense."""
        agent = None
        try:
            agent = self._make_agent()
            self.agent = agent
            agent.start()
            self.error, self._has_started = None, True
            self.must_restart = agent.wait(self._ended)
        except Exception as error:  # noqa: BLE001 - a fault of one driver is not the end of the others
            if agent is not None:
                self._stop(agent)
            self.agent, self._has_started = None, False
            self._fail(error)
            return False
        if self.must_restart:
            self._changed()
            self._ended.wait()
        self._stop(agent)
        return True

    @staticmethod
    def _stop(agent: NodeAgent) -> None:
        try:
            agent.stop()
        except Exception:
            log.exception("driver did not end in order")

    def _make_agent(self) -> NodeAgent:
        hardware = self._open_hardware()
        from dra_driver.node.daemon.node import NodeAgent

        return NodeAgent(self.options, hardware)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, DriverError):
            keys = fields(driver=self.options.driver, code=error.code, err=str(error))
            log.error("driver cannot start", extra=keys)
        else:
            log.error("bug: unexpected error", exc_info=error, extra=fields(driver=self.options.driver))
        self.error = error
        self._changed()


def has_claims(data_dir: Path) -> bool:
    """Return whether the ledger may hold claims, without opening a ledger that does not exist."""
    if not (data_dir / "ledger.db").exists():
        return False
    from dra_driver.node.ledger.database import has_claims as has_rows

    return has_rows(data_dir / "ledger.db")


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
