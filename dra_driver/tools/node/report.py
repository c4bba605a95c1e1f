"""What this node would publish, with problems and what containers would lack.

In: the settings of a node. Out: a `NodeReport`, its document, and the ResourceSlices. It only reads: nothing is
published or changed.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

from dra_driver.base.errors import DriverError
from dra_driver.base.flags import registered_or_default
from dra_driver.base.names import pool_name
from dra_driver.base.wire import Wire
from dra_driver.hardware.facts import Facts, GpuFacts
from dra_driver.node.devices.describing import counter_set_wire, device_wire
from dra_driver.node.kubelet.registration import SameNameDrivers
from dra_driver.node.neighbours.device_plugin import live_sockets
from dra_driver.node.slices.layout import lay_out
from dra_driver.tools.node.fault_rows import OfferPreview, fault_rows, offer_of
from dra_driver.tools.world.access import ClusterAccess, DocumentKind, OutputDocument
from dra_driver.tools.world.profiles import NodeSettings


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
        facts = selected.hardware.discover()
        offer = offer_of(selected, facts, access, rules)
        left_out = selected.hardware.edit_problems()
    finally:
        selected.hardware.close()
    return NodeReport(selected, facts, offer, left_out, withheld_reason(selected), _faults(selected))


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
