"""NodeAgent: the life of the daemon on a node, and what follows from each change.

    start    register, scan the hardware, try to get the node's role
    change   of the inventory or of other software on the node: decide, publish, keep CDI files right
    SIGUSR1  release the vendor's library, so that the driver can be unloaded; SIGUSR2 uses the hardware again
    end      because of a signal, a replaced driver, or a service socket that was removed: `stop` ends the parts in an
             order in which nothing is lost

The plugin is registered before the first scan of the hardware, because Unprepare needs only the ledger; Prepare waits.
While another driver of our name is registered, this one registers only if the ledger has claims, because the kubelet
calls the driver that registered last. The parts are created and connected in `wiring`.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from dra_driver import __version__
from dra_driver.base.errors import DriverError
from dra_driver.base.telemetry.logs import fields
from dra_driver.base.wire import DeviceTaints
from dra_driver.hardware.port import Hardware
from dra_driver.node.daemon.opened_node import OpenedNode, open_node
from dra_driver.node.daemon.options import Options
from dra_driver.node.daemon.wiring import Parts, join_parts
from dra_driver.node.devices.offering import KeptFields
from dra_driver.node.kubelet.sockets import FolderUse
from dra_driver.node.ledger.ledger import Ledger

if TYPE_CHECKING:
    from dra_driver.base.telemetry.metrics import Metrics, Snapshot
    from dra_driver.hardware.facts import Problem
    from dra_driver.node.slices.publisher import PublisherStatus


# Condition: the answers to probes, and the figures for metrics.


class NodeCondition:
    """The condition of one agent. The agent sets `is_serving` while it serves the kubelet."""

    def __init__(self, node: OpenedNode, parts: Parts) -> None:
        self._node, self._parts = node, parts
        self.is_serving = False

    def unready(self) -> tuple[str, ...]:
        """Return the reasons why the agent is not ready; none if it is."""
        parts, reasons = self._parts, []
        if self.is_serving and not parts.server.registered:
            reasons.append(f"not registered with the kubelet {parts.server.last_error}".rstrip())
        if self._node.ledger.problem:
            reasons.append(self._node.ledger.problem)
        if parts.inventory.current.waiting_for:
            reasons.append(f"waiting for {parts.inventory.current.waiting_for}")
        if parts.other_drivers.competing_agent:
            reasons.append(parts.other_drivers.competing_agent)
        if not parts.role.has_asked or (parts.role.is_held and not parts.role.has_begun):
            reasons.append("not all parts have started")
        status = parts.publisher.status()
        if parts.role.is_held and not status.is_published:
            why = " ".join(status.last_error.split())
            reasons.append(f"no slices published yet: {why}" if why else "no slices published yet")
        return tuple(reasons)

    def snapshot(self) -> Snapshot:
        """Return the agent's figures."""
        from dra_driver.base.telemetry.metrics import Snapshot

        parts, status = self._parts, self._parts.publisher.status()
        offered = parts.inventory.current.offering.for_server(KeptFields(shares=status.keeps.shares))
        counts: dict[str, Any] = {name: figures for part in parts for name, figures in part.figures().items()}
        return Snapshot(
            version=__version__,
            vendor=self._node.hardware.vendor,
            devices=Counter(str(device.type) for device in offered.devices),
            problems=Counter(problem.code for problem in self._problems(status)),
            slice_writes=status.writes,
            prepared_claims=count_claims(self._node.ledger),
            is_registered=parts.server.registered,
            holds_role=parts.role.is_held,
            scans=parts.scanner.scans,
            scan_seconds=parts.scanner.scan_seconds,
            pool_generation=status.generation,
            **counts,
        )

    def _problems(self, status: PublisherStatus) -> tuple[Problem, ...]:
        parts = self._parts
        sharing = (*parts.sharing.problems, *parts.other_drivers.problems())
        of_parts = (problem for part in parts for problem in part.problems)
        return (*parts.inventory.current.problems, *status.problems, *parts.declared_mig.problems, *sharing, *of_parts)


def count_claims(ledger: Ledger) -> int:
    """Return the number of claims in the ledger, 0 while it can't be read."""
    try:
        return ledger.count()
    except DriverError:
        return 0


log = logging.getLogger(__name__)

DRAIN_SECONDS = 20.0  # a call takes milliseconds; one that still waits for a device is repeated by the kubelet
VERDICT_SECONDS = 4.0  # how long to wait for the first slices to be published
POLL_SECONDS = 1.0  # between checks of what ends the agent


class NodeAgent:
    """One node's agent, from its first socket to its last. It is the `listener.Listener` of its parts."""

    def __init__(self, options: Options, hardware: Hardware) -> None:
        """Open the node, and create and connect the parts. Raises: DriverError."""
        self._options = options
        self._folder = FolderUse(options.data_dir)
        self._folder.enter()
        self._node = open_node(options, hardware)
        self._parts = join_parts(self._node, self)
        self._condition = NodeCondition(self._node, self._parts)
        self.metrics = self._make_metrics() if options.status.is_served else None
        self._must_restart = threading.Event()
        self._has_looked = False

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Register, scan the hardware, and try to get the node's role.

        Raises: NodeError and others, if a part can't start; `stop` then ends those that have started.
        """
        parts = self._parts
        parts.other_drivers.start()
        parts.scanner.start()
        parts.role.start()
        if parts.other_drivers.has_same_name_driver and not count_claims(self._node.ledger):
            log.info("not registered because another driver has this name", extra=fields(driver=self._options.driver))
        else:
            self._serve()

    def wait(self, stop: threading.Event) -> bool:
        """Wait until asked to stop or until this process can't go on; return whether it has to be restarted.

        Raises: the error of a part that works only with the node's role, if it could not start.
        """
        while not stop.wait(POLL_SECONDS):
            if self._parts.role.failure is not None:
                raise self._parts.role.failure
            if self._must_restart.is_set():
                return True
            if self._condition.is_serving and not self._parts.server.is_reachable:
                log.error("service socket was removed or replaced", extra=fields(driver=self._options.driver))
                return True
        return False

    def stop(self) -> None:
        """Shut down in the order in which nothing is lost: sockets, role, hardware, ledger, an unused folder."""
        parts = self._parts
        parts.other_drivers.stop()
        parts.server.stop(DRAIN_SECONDS)
        parts.role.stop()
        parts.scanner.stop()
        is_needed = not self._is_ledger_empty() or any(part.is_needed for part in parts)
        self._node.ledger.close()
        self._folder.leave(is_needed=is_needed)
        log.info("stopped", extra=fields(node=self._options.node))

    def unready(self) -> tuple[str, ...]:
        """Return the reasons why this driver is not ready; none if it is."""
        return self._condition.unready()

    def pause(self) -> None:
        """Release the vendor's library, so that the driver can be unloaded."""
        self._parts.scanner.pause()

    def resume(self) -> None:
        """Use the hardware again after `pause`."""
        self._parts.scanner.resume()

    def _serve(self) -> None:
        """Serve and register, unless that was done before. Raises: NodeError."""
        if not self._condition.is_serving:
            self._parts.server.start()
            self._condition.is_serving = True

    # -- changes -------------------------------------------------------------------------------------------------------

    def inventory_changed(self) -> None:
        """Offer the new inventory, and correct the CDI files of prepared claims."""
        if self._parts.declared_mig.is_declared or not self._has_looked:
            self._has_looked = True
            self._parts.reaper.run_soon()  # some undoing had to wait for the first scan of the hardware
        for part in self._parts:
            part.inventory_changed()
        self._publish()
        try:
            self._parts.repair.refresh_cdi()
        except DriverError as error:
            log.warning("CDI files not refreshed", extra=fields(code=error.code, err=str(error)))

    def other_drivers_changed(self) -> None:
        """Decide again what to offer, and clean up what other software left."""
        self._publish()
        self._parts.reaper.run_soon()

    def health_changed(self, taints: DeviceTaints) -> None:
        """Publish the devices with these taints, or withhold the free ones if the API server keeps no taints."""
        if self._parts.offer.taint(taints):
            self._parts.publisher.publish_changes()
        for part in self._parts:
            part.health_changed(taints)

    def validation_changed(self) -> None:
        """Offer the devices that are no longer held back."""
        self._publish()

    def driver_changed(self) -> None:
        """Restart the process, because only a new one can use the new driver's library."""
        self._must_restart.set()

    def same_name_drivers_left(self) -> None:
        """Register, because the other driver of our name is gone."""
        try:
            self._serve()
        except Exception as error:  # noqa: BLE001 - reported by the restart; a new process can register
            code = error.code if isinstance(error, DriverError) else "driver.bug"
            log.warning("restarting the process to register", extra=fields(code=code, err=str(error)))
            self._must_restart.set()

    def answered(self, rpc: str, seconds: float, code: str) -> None:
        """Count a call, and after an Unprepare decide again what to offer."""
        if self.metrics is not None:
            self.metrics.claim_answered(rpc, seconds, code)
        if rpc == "prepare":
            for part in self._parts:
                part.claim_prepared()
        elif rpc == "unprepare":
            self._claim_ended()

    def _claim_ended(self) -> None:
        parts = self._parts
        parts.other_drivers.claim_ended()
        for part in parts:
            part.claim_ended()
        if parts.inventory.current.waits_for_claims or any(part.waits_for_claims for part in parts):
            parts.scanner.run_soon()
        if parts.offer.claim_ended():
            parts.publisher.publish_changes()

    def role_gained(self) -> None:
        """Publish and clean up for this node from now on."""
        for part in self._parts:
            part.load()
        for working in self._parts.of_role:
            working.start()

    def role_lost(self) -> None:
        """Leave publishing and cleaning up to another instance."""
        for part in reversed(self._parts.of_role):
            try:
                part.stop()
            except Exception:
                log.exception("a part did not end in order")

    def tidy(self) -> int:
        """Check other software on the node, remove sockets of instances that died, and partition GPUs as declared."""
        self._parts.other_drivers.check()
        self._parts.unreleased.claim_ended()  # another instance may have unprepared a claim
        if self._parts.offer.claim_ended():  # the kubelet may have reported a claim that was just being unprepared
            self._parts.publisher.publish_changes()
        return self._parts.server.tidy() + self._apply_geometry() + self._destroy_abandoned()

    def _publish(self) -> None:
        """Publish what is offered now, if it differs from before."""
        if self._parts.offer.decide():
            self._parts.publisher.publish_changes()

    def _is_on_demand(self) -> bool:
        """Return whether partitions are created on demand, as far as the API server has shown."""
        return self._options.is_mig_dynamic and self._parts.publisher.status().keeps.counters

    def _destroy_abandoned(self) -> int:
        """Destroy what another driver's ended claims left, if partitions are created on demand."""
        count = self._parts.abandoned.destroy() if self._is_on_demand() else 0
        if count:
            self._parts.scanner.run_soon()
            self._parts.reaper.run_soon()  # the reaper then switches MIG mode off
        return count

    def _apply_geometry(self) -> int:
        """Partition GPUs as declared, unless that happens on demand, which is known once slices are published."""
        parts = self._parts
        if not parts.declared_mig.is_declared or parts.other_drivers.is_serving:
            return 0
        if not parts.publisher.wait_published(VERDICT_SECONDS):
            parts.reaper.run_soon()
            return 0
        if self._is_on_demand():
            return parts.declared_mig.suspend()
        count = parts.declared_mig.apply()
        if count:
            parts.scanner.run_soon()
        return count

    def _make_metrics(self) -> Metrics:
        from dra_driver.base.telemetry.metrics import Metrics

        return Metrics(self._condition.snapshot, more=lambda: b"".join(part.page() for part in self._parts))

    def _is_ledger_empty(self) -> bool:
        try:
            return self._node.ledger.is_empty()
        except DriverError:
            return False
