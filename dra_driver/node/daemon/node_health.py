"""Node health: faults in the forms in which they are shown: taints, the status of pods, events of the node, metrics.

In: the monitor's faults and this node's devices. Out: the taints of each device, and the health that the kubelet gets.
The monitor runs in the instance that holds the node's role; another instance knows nothing about health and reports
nothing.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from dra_driver.base.machine import boot_time
from dra_driver.hardware.evidence import XidReport
from dra_driver.hardware.facts import Facts, Problem
from dra_driver.hardware.port import HealthReporter
from dra_driver.node.daemon.claim_status import DeviceUsers
from dra_driver.node.daemon.fault_reports import HELD_BACK_REASON, FaultEvents, NewFaults, PodNotice
from dra_driver.node.daemon.node_validation import ValidationGate
from dra_driver.node.daemon.opened_node import OpenedNode
from dra_driver.node.devices.agent_part import AgentPart
from dra_driver.node.devices.offering import CurrentInventory, Inventory
from dra_driver.node.health.faults import Fault, FaultKey, FaultVerdict, HealthPolicy, HeldBackReason, Subject
from dra_driver.node.health.monitor import HealthFiles, HealthMonitor
from dra_driver.node.health.stored_health import HealthStore
from dra_driver.node.health.taints import (
    DevicePlace,
    EvictionBudget,
    Slots,
    is_within,
    taints_of,
    verdicts_of,
    with_unknown,
)
from dra_driver.node.health.xids import row_of
from dra_driver.node.kubelet.methods import DeviceReport, DeviceState, HealthStream
from dra_driver.node.slices.scanner import ChangeListener, place_of

PATIENCE_SECONDS = 30.0  # how long the slices stay as they are while it is not known which GPUs must not be offered
STALE_SECONDS = 30.0  # the monitor's knowledge is no longer used if it has completed no turn for this many seconds


class NodeHealth(AgentPart):
    """The health of one node's devices. Any thread may call any method.

    The listener is called with the new taints whenever they may have changed. `slots` are those of the cluster's budget
    of evictions, None if the policy deletes no pods.
    """

    def __init__(
        self,
        reporter: HealthReporter,
        node: OpenedNode,
        *,
        policy: HealthPolicy,
        slots: Slots | None,
        inventory: CurrentInventory,
        listener: ChangeListener,
        users: DeviceUsers,
        gate: ValidationGate | None,
    ) -> None:
        self._policy = policy
        options = node.options
        self._budget = self._budget_of(slots, options.node, HealthStore(options.data_dir)) if slots else None
        self._domain, self._pool, self._inventory = options.driver, node.identity.pool, inventory
        self._events = FaultEvents(node.api, users, node=options.node, driver=options.driver)
        self._listener, self._users = listener, users
        self._monitor = self._make_monitor(reporter, options.data_dir, node.identity.boot_id, gate)
        self._is_running = False
        self._new_faults = NewFaults(self._events)
        self._refreshing = threading.RLock()  # ensures that the later of two results is the newer one
        self._latest: Mapping[str, tuple[FaultVerdict, ...]] = {}
        self._held: tuple[Fault, ...] | None = ()  # None while it is not known which GPUs remediation keeps from claims
        self._started_at = self._started = 0.0
        self._shown: Inventory | None = None  # whose taints the listener has; None until all faults are known
        self.stream = HealthStream(self)

    def _make_monitor(
        self, reporter: HealthReporter, folder: Path, boot_id: str, gate: ValidationGate | None
    ) -> HealthMonitor:
        return HealthMonitor(
            reporter,
            HealthFiles.of(folder),
            policy=self._policy,
            boot_id=boot_id,
            changed=self.refresh,
            application_error=self._report_application_error,
            failed_tests=gate.failed if gate else _no_tests,
        )

    def start(self) -> None:
        """Begin to watch: this instance got the node's role.

        Faults that are known from before are reported before this returns.
        """
        with self._refreshing:  # until the faults on disk are known, another thread would take them for new ones
            self._is_running, self._shown = True, None
            self._started_at, self._started = time.time(), boot_time()
            self._new_faults.begin()
            self._monitor.start()
            self.refresh()

    def stop(self) -> None:
        """Stop watching."""
        self._is_running = False
        self._monitor.stop()

    @property
    def is_needed(self) -> bool:
        """Return whether something is known that must survive the end of the agent."""
        return self._monitor.is_needed

    def completed(self, facts: Facts) -> Facts:
        """Return the facts with the missing GPUs added as they were last seen, and marked as lost."""
        return self._monitor.completed(facts)

    def claim_ended(self) -> None:
        """Record that some claim was unprepared."""
        self._users.claim_ended()

    def inventory_changed(self) -> None:
        """Compute the taints of the new devices."""
        self.refresh()

    def figures(self) -> Mapping[str, Mapping[str, int] | Mapping[tuple[str, str], int]]:
        """Return the counts for the metrics."""
        return {"faults": self.fault_counts(), "held_back": self.held_back(), "xids": self.xid_counts()}

    def refresh(self) -> None:
        """Compute the taints again, because devices or faults have changed."""
        if not self._is_running:
            return
        with self._refreshing:
            is_known = self._is_known()
            may_show = is_known or self._is_impatient() or self._shown is not None
            inventory = self._inventory.current
            verdicts = self._latest = self._verdicts(inventory)
            self._listener.health_changed(taints_of(verdicts, self._domain))
            if may_show and self._shown is not inventory:
                self._shown = inventory  # only now, because the taints come first
                self._listener.validation_changed()
            self.stream.changed()
            if is_known:
                self._new_faults.report(verdicts, self._monitor.now.faults)
            if self.held_back().get(HeldBackReason.NODE):
                text = "more than half of this node's GPUs are faulty: their pods stay"
                self._events.send_node_event(HELD_BACK_REASON, text)

    @property
    def is_loaded(self) -> bool:
        """Return whether what was known before could be read."""
        return self._monitor.is_loaded

    def withheld(self, inventory: Inventory) -> frozenset[str] | None:
        """Return None while the slices have to stay as they are, and no device after that: the taints then say enough.

        They stay as they are for a while if it is not known which GPUs must not be offered, and until the taints of a
        new inventory were set: a GPU that came back may still have its fault.
        """
        return frozenset() if inventory is self._shown else None

    def _is_known(self) -> bool:
        return self._monitor.is_known and self._held is not None

    def _is_impatient(self) -> bool:
        return boot_time() - self._started > PATIENCE_SECONDS

    def reports(self) -> tuple[DeviceReport, ...]:
        """Return the health of every device in the form for the kubelet."""
        if not self._is_running or self._monitor.turned_at == 0.0:
            return ()
        is_stale = boot_time() - self._monitor.turned_at > STALE_SECONDS
        verdicts = {} if is_stale else self._verdicts(self._inventory.current)
        names = dict.fromkeys(device.name for device in self._inventory.current.offering.every())
        if is_stale:
            text = "the health monitor does not answer"
            return tuple(DeviceReport(self._pool, name, DeviceState.UNKNOWN, text) for name in names)
        return tuple(_report(self._pool, name, verdicts.get(name, ())) for name in names)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Return the current faults, without those that hold GPUs back for their remediation."""
        return self._monitor.now.faults

    def hold(self, faults: tuple[Fault, ...] | None) -> None:
        """Treat these faults, which no source reports, as current from now on; None if it is not known which."""
        if faults is None or faults != self._held:
            self._held = faults
            self.refresh()

    def was_read_since(self, gpu: str, at: float) -> bool:
        """Return whether a GPU's health was read after a time (boot time)."""
        return self._monitor.read_at(gpu) > at

    def forget_errors(self, gpu: str) -> None:
        """Forget the errors that were reported of a GPU before it was remediated."""
        self._monitor.forget_errors(gpu)

    def send_events(self, reason: str, text: str, gpus: Collection[str] = ()) -> None:
        """Send an Event about the node, and about the pods that use these GPUs."""
        self._events.send_node_event(reason, text)
        names = frozenset(name for name, place in _places(self._inventory.current).items() if place.gpu in gpus)
        if names:
            self._events.send_pod_events(PodNotice(names, reason, text, time.time()))

    @property
    def is_silent(self) -> bool:
        """Return whether what is known is too old to be relied on, because the monitor or the library has stopped."""
        is_stale = boot_time() - self._monitor.turned_at > STALE_SECONDS or not self._is_known()
        return is_stale or any(fault.key is FaultKey.UNMONITORED for fault in self._monitor.now.faults)

    def blocking(self) -> tuple[FaultVerdict, ...] | None:
        """Return the verdicts that keep claims from devices, the most important first; None before any is known."""
        if not self._is_running or self._monitor.turned_at == 0.0 or not _places(self._inventory.current):
            return None
        every = (one for found in self._latest.values() for one in found if one.effect.is_blocking)
        unique = {(one.fault.subject, one.fault.key): one for one in every}
        return tuple(sorted(unique.values(), key=lambda one: (one.fault.key.rank, one.fault.subject.gpu)))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Return which parts of the node's health can't be read."""
        return self._monitor.now.problems

    def fault_counts(self) -> Mapping[str, int]:
        """Return the number of GPUs with each fault, by key."""
        return Counter(str(fault.key) for fault in (*self._monitor.now.faults, *(self._held or ())))

    def xid_counts(self) -> Mapping[tuple[str, str], int]:
        """Return how often each Xid was reported since the agent started, by code and class."""
        return {(str(code), str(row_of(code).kind)): count for code, count in self._monitor.now.xids.items()}

    def _verdicts(self, inventory: Inventory) -> Mapping[str, tuple[FaultVerdict, ...]]:
        now = self._monitor.now
        places = _places(inventory).values()
        if not places:  # no fault is judged before the first scan of the hardware
            return {}
        limited = self._budget.limited if self._budget else tuple
        faults = (*now.faults, *(self._held or ()))
        verdicts = verdicts_of(places, faults, self._policy, time.time(), now.cordons, limited=limited)
        if self._is_known() or not self._is_impatient():
            return verdicts
        return with_unknown(verdicts, places, self._started_at)

    def held_back(self) -> Mapping[str, int]:
        """Return how many GPUs and partitions keep their pods although the policy says NoExecute, by reason."""
        found = {
            (one.fault.subject, str(one.held_back)) for all_ in self._latest.values() for one in all_ if one.held_back
        }
        return Counter(reason for _, reason in found)

    def _budget_of(self, slots: Slots, node: str, store: HealthStore) -> EvictionBudget:
        def alert(text: str) -> None:
            self._events.send_node_event(HELD_BACK_REASON, text)

        return EvictionBudget(slots, node=node, store=store, changed=self.refresh, alert=alert)

    def _report_application_error(self, subject: Subject, xid: XidReport) -> None:
        places = _places(self._inventory.current)
        devices = frozenset(name for name, place in places.items() if is_within(place, subject))
        text = f"an application's error, Xid {xid.code}; the device itself is not at fault"
        self._events.send_application_event(devices, text, xid.at)


def read_policy(path: Path | None) -> HealthPolicy:
    """Return the policy of a file, or the default one. Raises: InputError."""
    if path is None:
        return HealthPolicy()
    from dra_driver.node.health.policy_files import read_health_policy

    return read_health_policy(path)


def _places(inventory: Inventory) -> Mapping[str, DevicePlace]:
    return {device.name: place_of(device) for device in inventory.offering.every()}


def _no_tests(_: Iterable[Fault]) -> Mapping[Subject, str]:
    return {}


def _report(pool: str, name: str, verdicts: tuple[FaultVerdict, ...]) -> DeviceReport:
    message = "; ".join(verdict.fault.sentence for verdict in verdicts)
    if any(verdict.fault.key == "unmonitored" for verdict in verdicts):
        return DeviceReport(pool, name, DeviceState.UNKNOWN, message)
    is_unhealthy = any(verdict.effect.is_blocking for verdict in verdicts)
    return DeviceReport(pool, name, DeviceState.UNHEALTHY if is_unhealthy else DeviceState.HEALTHY, message)
