"""An opened node: its stores, the other software that hands out its GPUs, and who holds its devices.

While a device plugin or another driver of our name serves the same GPUs, nothing is offered. Devices that claims hold
under names which this driver does not publish are left out. Who holds a device is not cached: each question is answered
from the ledger, the kubelet and the vendor's library as they are now.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dra_driver.base.errors import DriverError
from dra_driver.base.flags import registered_or_default
from dra_driver.base.names import gpu_of_vfio_device
from dra_driver.base.telemetry.logs import fields
from dra_driver.hardware.facts import GpuFacts, PartitionFacts, Problem
from dra_driver.hardware.metered import MetricNames
from dra_driver.hardware.port import Hardware, Metered
from dra_driver.hardware.vendors import load_vendor
from dra_driver.kube.api import KubeApi, NodeEvents
from dra_driver.kube.credentials import load_credentials
from dra_driver.kube.paths import CLAIMS
from dra_driver.node.cdi import CdiStore
from dra_driver.node.daemon.node_validation import ValidationGate
from dra_driver.node.daemon.options import Options, TelemetryOptions
from dra_driver.node.devices.describing import Device
from dra_driver.node.devices.offering import CurrentInventory, Inventory, NodeIdentity, this_node
from dra_driver.node.health.stored_health import HealthStore
from dra_driver.node.health.validation import ValidationLevel, ValidationSetting
from dra_driver.node.health.validation_results import ValidationRecords
from dra_driver.node.health.validator import held_among, holding_claims, processes_on, unshared_name
from dra_driver.node.kubelet.registration import SameNameDrivers
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.locks import NodeLocks, ValidationLock
from dra_driver.node.metering.billing import Selection, default_selection, read_selection
from dra_driver.node.metering.claim_tally import MeterSettings, NodeMeter
from dra_driver.node.metering.series import LabelStyle
from dra_driver.node.neighbours.allocations import AllocatedDevices, ForeignClaims, held_under_other_names
from dra_driver.node.neighbours.allocations import problems as renamed_problems
from dra_driver.node.neighbours.device_plugin import DevicePluginWatch
from dra_driver.node.neighbours.node_claims import NodeClaims
from dra_driver.node.neighbours.pod_resources import ListedClaims, PodResources
from dra_driver.node.prepare.repair import CdiClaimFiles
from dra_driver.node.slices.scanner import ChangeListener, NodeInventory


class OtherDrivers:
    """The other software on one node.

    The listener is called when the offer may change, and when no other driver of our name is left.
    """

    def __init__(self, node: OpenedNode, listener: ChangeListener) -> None:
        self._node, self._listener, options = node, listener, node.options
        self._renamed: Mapping[str, frozenset[str]] = {}  # devices held under another version's names
        driver, folder, vendor = options.driver, options.device_plugins_dir, options.vendor
        changed = self._device_plugin_changed
        self._device_plugin = (
            DevicePluginWatch(node.kubelet, node.api, node=options.node, folder=folder, changed=changed, vendor=vendor)
            if folder
            else None
        )
        self._same_name_drivers = SameNameDrivers(
            options.registrar_dir, options.data_dir, driver=driver, changed=self._same_name_driver_changed
        )
        self._foreign = ForeignClaims(
            node.claims,
            options.cdi_root,
            node=options.node,
            driver=driver,
            ledger=node.ledger,
            changed=listener.other_drivers_changed,
        )

    @property
    def has_same_name_driver(self) -> bool:
        """Return whether another driver is registered under our name."""
        return bool(self._same_name_drivers.reason)

    @property
    def competing_agent(self) -> str:
        """Return which agent of this driver publishes in our place; empty while there is none."""
        return self._same_name_drivers.competing_agent

    @property
    def is_serving(self) -> bool:
        """Return whether other software hands out these GPUs; then nothing is offered."""
        return self.has_same_name_driver or bool(self._device_plugin and self._device_plugin.reason)

    @property
    def is_known(self) -> bool:
        """Return whether every check has had its first answer; before that, nothing may be offered."""
        return self._foreign.is_known and (not self._device_plugin or self._device_plugin.is_known)

    def start(self) -> None:
        """Look for drivers of our name now, and for all other software in threads."""
        self._same_name_drivers.start()
        if self._device_plugin:
            self._device_plugin.start()
        self._foreign.start()

    def stop(self) -> None:
        """End the threads."""
        for watch in (self._same_name_drivers, self._device_plugin, self._foreign):
            if watch:
                watch.stop()

    def check(self) -> None:
        """Check whether claims under another version's names have released devices, so that these are offered again."""
        try:
            self._node.claims.examine(self._node.ledger.records())
        except DriverError as error:
            log.warning("cannot read the claims in the ledger", extra=fields(code=error.code, err=str(error)))
        if self._renamed:
            self._listener.other_drivers_changed()

    def claim_ended(self) -> None:
        """Check soon whether an unprepared claim held a device under a foreign name, so that it is offered again."""
        self._foreign.claim_ended()

    def record_other_names(self, inventory: Inventory) -> None:
        """Record which of these devices are held under another driver version's names."""
        node, before, devices = self._node, self._renamed, tuple(inventory.by_name.values())
        try:
            self._renamed = held_under_other_names(
                node.ledger.records(), devices, node.store, driver=node.options.driver, boot_id=node.identity.boot_id
            )
        except DriverError as error:  # the last answer remains valid
            log.warning(
                "cannot determine which devices are held under other names",
                extra=fields(code=error.code, err=str(error)),
            )
        for name in self._renamed.keys() - before.keys():
            log.warning("a device is held under another version's name", extra=fields(device=name))

    def offer(self, devices: Sequence[Device]) -> tuple[Device, ...]:
        """Return the devices that no claim holds under another name."""
        taken = frozenset[str]().union(*self._renamed.values())
        return tuple(device for device in self._foreign.offer(devices) if device.name not in taken)

    def may_hold(self, uid: str) -> bool:
        """Return whether a claim of another driver may still hold devices of this node."""
        return self.has_same_name_driver or self._foreign.may_hold(uid)

    def problems(self) -> tuple[Problem, ...]:
        """Return everything that keeps devices from being offered."""
        plugin = self._device_plugin.problems() if self._device_plugin else ()
        foreign = (*self._foreign.problems(), *self._node.claims.problems())
        return (*plugin, *self._same_name_drivers.problems(), *foreign, *renamed_problems(self._renamed))

    def _device_plugin_changed(self) -> None:
        self._listener.other_drivers_changed()
        if self._device_plugin and self._device_plugin.reason:
            self._send_event("DevicePluginServesGPUs", self._device_plugin.reason)

    def _same_name_driver_changed(self) -> None:
        self._foreign.check_again()
        self._listener.other_drivers_changed()
        if self._same_name_drivers.reason:
            self._send_event("AnotherDriverRegistered", self._same_name_drivers.reason)
        else:
            self._listener.same_name_drivers_left()

    def _send_event(self, reason: str, why: str) -> None:
        self._node.events.send(reason, f"{self._node.options.driver} publishes no device: {why}", "Warning")


class NodeDeviceHolders:
    """The holders of this node's devices. Any thread may call any method."""

    def __init__(
        self,
        hardware: Hardware,
        ledger: Ledger,
        *,
        inventory: CurrentInventory,
        allocated: AllocatedDevices,
        other_drivers: OtherDrivers,
    ) -> None:
        self._hardware, self._ledger, self._inventory = hardware, ledger, inventory
        self._allocated, self._other_drivers = allocated, other_drivers

    def held(self) -> frozenset[str]:
        """Return the names of the devices that claims hold or are allocated, of this driver or another.

        Raises: DriverError.
        """
        every = tuple(self._inventory.current.by_name.values())
        free = {device.name for device in self._other_drivers.offer(every)}
        foreign = frozenset(device.name for device in every if device.name not in free)
        held = self._ledger.held() | self._allocated.names(is_patient=False) | foreign
        # A device for virtual machines is not used through the host's driver.
        return frozenset(name for name in held if gpu_of_vfio_device(name) is None)

    def holder_of(self, gpu: GpuFacts, partition: PartitionFacts | None) -> str:
        """Return who uses a device, in words; empty if it is free."""
        if self._other_drivers.is_serving:
            return "another driver or a device plugin serves this node's GPUs"
        try:
            held = held_among(self.held(), unshared_name(gpu, partition))
        except DriverError as error:
            return f"it can't be determined which devices claims have: {error}"
        return held or processes_on(self._hardware, gpu, partition)

    def claims_of(self, device: str) -> str:
        """Return, in words, the claims that hold a device or parts of it according to the ledger; empty for none."""
        return holding_claims(self._ledger, device)

    def fault_of(self, gpu: GpuFacts, partition: PartitionFacts | None) -> str:
        """Return no fault: the health monitor finds the faults, and keeps faulty devices from being tested."""
        del gpu, partition
        return ""


# Opened node: the API client, the ledger, the CDI folder and the kubelet's list of pods, opened for the agent.


@dataclass(frozen=True)
class OpenedNode:
    """Everything that each part of the agent needs: identity, API client, ledger, CDI files."""

    options: Options
    hardware: Hardware
    identity: NodeIdentity
    api: KubeApi
    ledger: Ledger
    locks: NodeLocks
    store: CdiStore
    kubelet: PodResources
    claims: NodeClaims
    events: NodeEvents


def open_node(options: Options, hardware: Hardware) -> OpenedNode:
    """Open the files and connections of the agent. Raises: DriverError."""
    api, store = KubeApi(load_credentials(options.kubeconfig)), CdiStore(options.cdi_root)
    identity = this_node(options.node, options.driver, options.roots.proc)
    files = CdiClaimFiles(store, options.driver)
    ledger = Ledger(options.data_dir / "ledger.db", boot_id=identity.boot_id, files=files)
    kubelet = PodResources(options.pod_resources, options.driver)
    listed = _listed_claims(options, identity, api)
    claims = NodeClaims(identity, options.node, api=api, kubelet=kubelet, ledger=ledger, listed=listed)
    locks, events = NodeLocks(options.data_dir / "locks"), NodeEvents(api, node=options.node, driver=options.driver)
    return OpenedNode(options, hardware, identity, api, ledger, locks, store, kubelet, claims, events)


def _listed_claims(options: Options, identity: NodeIdentity, api: KubeApi) -> ListedClaims | None:
    if not options.lists_claims:
        return None
    from dra_driver.kube.watch import objects

    listing = partial(objects, api, CLAIMS, patience_s=0.0)  # the caller waits for the list
    return ListedClaims(listing, api, driver=identity.driver, pools=(options.node, identity.pool))


# Node metering: the meter of this node, made from the agent's options.

log = logging.getLogger(__name__)

# For a vendor that measures but has no metric names of its own: only the series about claims and hours, by GPU.
_NO_NAMES = MetricNames((), gpu_labels=lambda index, gpu: (("gpu", str(index)), ("pci_bus_id", gpu.pci_address)))


def make_meter(node: OpenedNode, hardware: Metered, wanted: TelemetryOptions, inventory: CurrentInventory) -> NodeMeter:
    """Return the meter of a node. Raises: InputError for a counters file that can't be used."""
    names = _names(node.hardware.vendor)
    selection = _selection(names, wanted)
    hostname_label = names.hostname_label or wanted.hostname_label
    style = LabelStyle(node.options.node, node.identity.driver, names, hostname_label, selection.labels)
    settings = MeterSettings(
        style,
        selection,
        pool=node.identity.pool,
        beat_s=wanted.interval_s,
        with_profiling=wanted.with_profiling,
        has_common_names=wanted.has_common_names,
        repeats_gpu=wanted.repeats_gpu,
        proc=Path(node.options.roots.proc),
    )
    return NodeMeter(hardware, node.ledger, node.kubelet, settings=settings, inventory=inventory)


def _names(vendor: str) -> MetricNames:
    """Return the names of a vendor; simulated machines have those of the default one."""
    declared = load_vendor(registered_or_default(vendor).name).metric_names
    return declared() if declared is not None else _NO_NAMES


def _selection(names: MetricNames, wanted: TelemetryOptions) -> Selection:
    file = wanted.counters
    if file is None or not names.takes_counters_file:
        return default_selection(names, has_former=wanted.has_former_names)
    selection = read_selection(file, names)
    if selection.unknown:
        log.warning(
            "counters that are not known are left out", extra=fields(reason=", ".join(selection.unknown)[:1000])
        )
    return selection


# The parts with which an agent tests its devices; they are created only if `--validate` is not `none`.


def make_gate(
    node: OpenedNode,
    setting: ValidationSetting,
    listener: ChangeListener,
    *,
    inventory: NodeInventory,
    allocated: AllocatedDevices,
    other_drivers: OtherDrivers,
) -> ValidationGate:
    """Return the gate of a node. The code of tests is imported only if there will be tests."""
    options, level = node.options, setting.level or ValidationLevel.READING
    holders = NodeDeviceHolders(
        node.hardware, node.ledger, inventory=inventory, allocated=allocated, other_drivers=other_drivers
    )
    validator = None
    if level is not ValidationLevel.READING:
        from dra_driver.node.health.validator import Validator

        validator = Validator(node.hardware, ValidationLock(options.data_dir), holders, command=setting.command)
    return ValidationGate(
        validator,
        ValidationRecords(HealthStore(options.data_dir), node.identity.boot_id),
        options.data_dir,
        level=level,
        inventory=inventory,
        claims=holders,
        events=node.events,
        listener=listener,
    )
