"""What this node would publish, with problems and what containers would lack; and the faults that its agent recorded.

In: the settings of a node, and the agent's files. Out: a `NodeReport`, its document and the ResourceSlices; rows of
faults, cordons and remediations. It only reads: nothing is published or changed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from dra_driver.base.errors import DriverError, InputError
from dra_driver.base.flags import registered_or_default
from dra_driver.base.machine import read_boot_id
from dra_driver.base.names import gpu_name, pool_name
from dra_driver.base.wire import DeviceType, Wire
from dra_driver.hardware.driver_binding import OwnBus
from dra_driver.hardware.facts import Facts, GpuFacts
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.describing import Device, counter_set_wire, device_wire
from dra_driver.node.devices.offering import Inventory
from dra_driver.node.devices.partitions import ON_DEMAND, MigPolicy, Ownership, offer_text
from dra_driver.node.devices.rules import SharingRules
from dra_driver.node.health.cases import RemediationCase, RemediationJournal
from dra_driver.node.health.cordons import Cordon
from dra_driver.node.health.faults import Fault, FaultKey
from dra_driver.node.kubelet.registration import SameNameDrivers
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.unreleased import UnreleasedClaim
from dra_driver.node.neighbours.device_plugin import live_sockets
from dra_driver.node.slices.layout import lay_out
from dra_driver.tools.doctor.evidence import read_faults
from dra_driver.tools.world.access import ClusterAccess, DocumentKind, OutputDocument
from dra_driver.tools.world.profiles import NodeSettings

SHARED = "whole, and shared"


@dataclass(frozen=True, slots=True)
class OfferPreview:
    """What a node would publish.

    `are_counters_kept` is None if no server answered whether it keeps shared counters; `server` is the server that was
    asked, or why none was. `exceptions` has the GPUs that are not partitioned on demand, with the reasons.
    """

    inventory: Inventory
    are_counters_kept: bool | None
    server: str
    exceptions: Mapping[str, str]

    @property
    def devices(self) -> tuple[Device, ...]:
        """Return the devices that are published: with counters, unless the server drops those."""
        return (
            self.inventory.offering.plain
            if self.are_counters_kept is False and self.is_on_demand
            else self.inventory.devices
        )

    @property
    def is_on_demand(self) -> bool:
        """Return whether any GPU would be partitioned on demand."""
        return bool(self.inventory.offering.counter_sets)


def offer_of(selected: NodeSettings, facts: Facts, access: ClusterAccess, rules: SharingRules) -> OfferPreview:
    """Work out what the agent would publish for this hardware."""
    policy = MigPolicy(selected.is_mig_dynamic, selected.has_all_profiles, _ownership(selected))
    inventory = build_inventory(facts, policy, rules)
    shared = {device.gpu.pci_address for device in inventory.devices if device.type is DeviceType.GPU_SHARE}
    partitionable = [gpu for gpu in facts.gpus if gpu.mig_profiles or gpu.mig_enabled]
    how_of = {
        gpu.pci_address: SHARED if gpu.pci_address in shared else offer_text(gpu, policy) for gpu in partitionable
    }
    exceptions = {address: how for address, how in how_of.items() if how != ON_DEMAND}
    are_counters_kept, server = _ask(selected, inventory, access) if inventory.offering.counter_sets else (None, "")
    return OfferPreview(inventory, are_counters_kept, server, exceptions)


def runs_here(selected: NodeSettings) -> bool:
    """Return whether an agent has run on this node."""
    return (selected.data / "ledger.db").exists()


def _ownership(selected: NodeSettings) -> Ownership:
    """Read which partitions the agent made. Without a ledger, every partition is an administrator's."""
    if not runs_here(selected):
        return Ownership()
    from dra_driver.node.devices.offering import this_node
    from dra_driver.node.ledger.ledger import Ledger
    from dra_driver.node.ledger.locks import NodeLocks
    from dra_driver.node.prepare.steps.standing_partitions import PartitionOwners

    ledger = Ledger(selected.data / "ledger.db", reads_only=True)
    try:
        node = this_node(selected.node, selected.driver, selected.roots.proc)
        return PartitionOwners(selected.hardware, ledger, NodeLocks(selected.data / "locks"), node.boot_id).of_ledger()
    except DriverError:
        return Ownership()
    finally:
        ledger.close()


def _ask(selected: NodeSettings, inventory: Inventory, access: ClusterAccess) -> tuple[bool | None, str]:
    """Ask a server whether it keeps shared counters; return the answer, and which server was asked or why none was."""
    if not access.kubeconfig and not os.environ.get("KUBERNETES_SERVICE_HOST"):
        return None, "no API server was asked, because there is no --kubeconfig"
    from dra_driver.base.names import pool_name
    from dra_driver.node.slices.compare import content_of
    from dra_driver.node.slices.layout import SliceSpec
    from dra_driver.node.slices.server_facts import keeps_counters
    from dra_driver.node.slices.writer import SliceWriter

    empty = SliceSpec(selected.driver, selected.node, pool_name(selected.node, selected.driver))
    try:
        api = access.connect()
        try:
            version = api.server_version()
            content = content_of(inventory.offering, server_minor=version.minor)
            kept = keeps_counters(SliceWriter(api), content, empty, minor=version.minor)
        finally:
            api.close()
    except DriverError as error:
        return None, f"the API server did not answer: {error}"
    return kept, f"API server {version.git}"


# Faults and cordons of this node as rows, from what its agent has recorded.


def fault_rows(folder: Path, now: float) -> list[Wire] | None:
    """Return the rows at a time in seconds since 1970, the most important fault first.

    Raises: LedgerError, InputError, PermissionError.
    """
    recorded = read_faults(folder, now)
    if recorded is None:
        return None
    rows = [
        *map(_fault_row, recorded.faults),
        *map(_cordon_row, recorded.cordons),
        *map(_case_row, recorded.remediations),
    ]
    return sorted(rows, key=lambda row: FaultKey(row["fault"]).rank)


def cordon_document(device: str, cordon: Cordon | None) -> OutputDocument:
    """Return the document of a device's cordon; `cordon` is None if the device has none."""
    content = {
        "device": device,
        "isCordoned": cordon is not None,
        "reason": cordon.reason if cordon else None,
        "since": time_text(cordon.since) if cordon else None,
        "until": time_text(cordon.until) if cordon and cordon.until is not None else None,
    }
    return OutputDocument(DocumentKind.CORDON, content)


def fault_place(row: Wire) -> str:
    """Return the device of a row, and its partition if the fault is about one, as text for people."""
    part = row["partition"]
    return f"{row['device']} (profile {part['profileId']}, slice {part['start']})" if part else str(row["device"])


def _fault_row(fault: Fault) -> Wire:
    partition = None
    if fault.subject.partition:
        profile, start = fault.subject.partition
        partition = {"profileId": profile, "start": start}
    return {
        "device": gpu_name(fault.subject.gpu),
        "partition": partition,
        "fault": str(fault.key),
        "value": fault.value,
        "since": time_text(fault.since),
        "message": fault.sentence,
    }


def _cordon_row(one: Cordon) -> Wire:
    return {
        "device": one.device,
        "partition": None,
        "fault": str(FaultKey.CORDONED),
        "value": None,
        "since": time_text(one.since),
        "message": one.reason,
    }


def _case_row(case: RemediationCase) -> Wire:
    value = case.reason
    waits = f"{case.stage}: {case.waits_for}" if case.waits_for else str(case.stage)
    return {
        "device": gpu_name(case.gpu),
        "partition": None,
        "fault": str(FaultKey.REMEDIATION),
        "value": value,
        "since": time_text(case.began),
        "message": waits,
    }


def time_text(at: float) -> str:
    """Return a time in seconds since 1970 as text, in UTC and whole seconds."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# Unreleased devices of a node: claims that were unprepared while containers may still use their devices.


def unreleased_claims(folder: Path, proc: str = "/proc") -> tuple[UnreleasedClaim, ...]:
    """Return the unreleased claims of this boot. Raises: LedgerError."""
    with _ledger(folder, proc, reads_only=True) as (ledger, boot_id):
        return () if ledger is None else _in_force(ledger, boot_id)


def release(folder: Path, device: str, proc: str = "/proc") -> UnreleasedClaim:
    """Release a device, with all devices of its claim, and return that claim; a process may still use them.

    Raises: InputError("input.device") if the device is not unreleased; LedgerError.
    """
    with _ledger(folder, proc, reads_only=False) as (ledger, boot_id):
        claims = () if ledger is None else _in_force(ledger, boot_id)
        found = next((claim for claim in claims if device in claim.names), None)
        if ledger is None or found is None:
            raise InputError("device", f"{device} does not wait for a container", hint="dra-driver release lists those")
        ledger.unreleased.forget([found])
        return found


def _in_force(ledger: Ledger, boot_id: str) -> tuple[UnreleasedClaim, ...]:
    return tuple(claim for claim in ledger.unreleased.of_boot(boot_id) if claim.is_in_force)


@contextmanager
def _ledger(folder: Path, proc: str, *, reads_only: bool) -> Iterator[tuple[Ledger | None, str]]:
    path = folder / "ledger.db"
    if not path.exists():
        yield None, ""
        return
    boot_id = read_boot_id(proc)
    ledger = Ledger(path, boot_id=boot_id, reads_only=reads_only)
    try:
        yield ledger, boot_id
    finally:
        ledger.close()


# Remediations of this node as rows, from what its agent has recorded.


def remediation_rows(folder: Path) -> list[Wire]:
    """Return the last remediation of each GPU. Raises: LedgerError."""
    return [_row(case) for case in RemediationJournal(folder).cases()]


def action_rows(folder: Path) -> list[Wire]:
    """Return the actions that the journal has, the oldest first. Raises: LedgerError."""
    rows = RemediationJournal(folder).actions()
    return [
        {"at": time_text(row.at), "uuid": row.uuid, "action": row.action, "outcome": row.outcome or None}
        for row in rows
    ]


def _row(case: RemediationCase) -> Wire:
    return {
        "device": gpu_name(case.gpu),
        "uuid": case.uuid,
        "fault": str(case.key),
        "value": case.value,
        "stage": str(case.stage),
        "action": str(case.action),
        "tries": case.tries,
        "peers": [gpu_name(peer) for peer in case.peers],
        "since": time_text(case.began),
        "stageSince": time_text(case.stage_at),
        "message": case.waits_for,
    }


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a node would publish and what is wrong with it.

    `left_out` is what containers will not get on this node. `withheld` is the reason why the agent would publish
    nothing, as far as the sockets on the node show, or "". `faults` are those that an agent on this node recorded, as
    in `NodeHealth`.
    """

    selected: NodeSettings
    facts: Facts
    offer: OfferPreview
    left_out: tuple[str, ...]
    withheld: str
    faults: tuple[Wire, ...] = ()


def report_of(selected: NodeSettings, access: ClusterAccess) -> NodeReport:
    """Read the hardware, and ask the API server what it would keep; the hardware is closed afterwards.

    Raises: InputError for a wrong file of sharing rules, HardwareError.
    """
    rules = selected.rules()
    try:
        facts = _with_passed(selected, selected.hardware.discover())
        offer = offer_of(selected, facts, access, rules)
        left_out = selected.hardware.edit_problems()
    finally:
        selected.hardware.close()
    return NodeReport(selected, facts, offer, left_out, withheld_reason(selected), _faults(selected))


def _with_passed(selected: NodeSettings, facts: Facts) -> Facts:
    """Return the facts with the GPUs that virtual machines may have. Raises: InputError for a wrong file."""
    if selected.passthrough is None:
        return facts
    from dra_driver.node.daemon.passthrough import PassthroughGpus
    from dra_driver.node.daemon.passthrough_memory import RememberedGpus
    from dra_driver.node.devices.rules_files import read_passthrough_rules

    rules = read_passthrough_rules(selected.passthrough).of_node(selected.node)
    hardware = selected.hardware
    roots = hardware.bus_access().roots if isinstance(hardware, OwnBus) else selected.roots
    with TemporaryDirectory() as folder:  # nothing is remembered: only what the bus shows now counts
        return PassthroughGpus(rules, roots, RememberedGpus(Path(folder), "")).completed(facts)


def report_document(report: NodeReport) -> OutputDocument:
    """Return the document of a report."""
    selected, facts, offer = report.selected, report.facts, report.offer
    inventory = offer.inventory
    content = {
        "node": selected.node,
        "driver": selected.driver,
        "pool": pool_name(selected.node, selected.driver),
        "vendor": facts.vendor,
        "driverVersion": facts.driver_version,
        "cudaDriverVersion": facts.runtime_version,
        "waitingFor": inventory.waiting_for or None,
        "withheld": report.withheld or None,
        "mig": {
            "onDemand": offer.is_on_demand,
            "countersKept": offer.are_counters_kept,
            "how": offer.server or None,
            "asTheyStand": [{"pciAddress": address, "reason": reason} for address, reason in offer.exceptions.items()],
        },
        "sharedCounters": _counter_sets(offer),
        "devices": [device_wire(device) for device in offer.devices],
        "devicesWithoutCounters": [device_wire(device) for device in inventory.offering.plain],
        "instead": {name: [device_wire(one) for one in others] for name, others in inventory.offering.instead.items()},
        "gpus": [_gpu_document(gpu) for gpu in facts.gpus],
        "problems": [{"code": p.code, "subject": p.subject, "message": p.message} for p in inventory.problems],
        "leftOut": list(report.left_out),
        "faults": list(report.faults),
    }
    return OutputDocument(DocumentKind.NODE_OFFER, content)


def slices_of(report: NodeReport) -> list[Wire]:
    """Return the ResourceSlices that the agent would publish on the newest server, as objects for other commands."""
    selected, offer = report.selected, report.offer
    specs = lay_out(
        map(device_wire, offer.devices),
        pool=pool_name(selected.node, selected.driver),
        node=selected.node,
        driver=selected.driver,
        server_minor=0,
        counter_sets=_counter_sets(offer),
    )
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{selected.node}-{selected.driver}-{number}"},
            "spec": spec.wire(1, len(specs)),
        }
        for number, spec in enumerate(specs)
    ]


def _counter_sets(offer: OfferPreview) -> list[Wire]:
    with_counters = offer.is_on_demand and offer.are_counters_kept is not False
    sets = offer.inventory.offering.counter_sets if with_counters else {}
    return [counter_set_wire(*item) for item in sets.items()]


def _faults(selected: NodeSettings) -> tuple[Wire, ...]:
    """Return the faults that the agent has recorded; none if they can't be read, which `health show` reports."""
    with suppress(DriverError, OSError):
        return tuple(fault_rows(selected.data, time.time()) or ())
    return ()


def withheld_reason(selected: NodeSettings) -> str:
    """Return why the agent would publish nothing, as far as sockets on the node show; empty if there is no reason."""
    if other := SameNameDrivers(selected.registrar, selected.data, driver=selected.driver).find():
        return other
    sockets = live_sockets(selected.device_plugins, _vendor_of(selected)) if selected.device_plugins else []
    return f"a device plugin serves these GPUs (socket {sockets[0]})" if sockets else ""


def _vendor_of(selected: NodeSettings) -> str:
    return registered_or_default(selected.hardware.vendor).name


def _gpu_document(gpu: GpuFacts) -> Wire:
    """Return the facts about a GPU that are not published because they may change while claims are prepared."""
    return {
        "uuid": gpu.uuid,
        "pciAddress": gpu.pci_address,
        "minor": gpu.minor,
        "migEnabled": gpu.mig_enabled,
        "partitions": [partition.uuid for partition in gpu.partitions],
    }
