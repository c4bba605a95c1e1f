"""Node metering: the meter of this node, made from the agent's options."""

from __future__ import annotations

import logging
from pathlib import Path

from dra_driver.agent.opened_node import OpenedNode
from dra_driver.agent.options import TelemetryOptions
from dra_driver.hardware.metric_names import MetricNames
from dra_driver.hardware.port import Metered
from dra_driver.hardware.vendors import load_vendor
from dra_driver.inventory.offering import CurrentInventory
from dra_driver.metering.node_meter import MeterSettings, NodeMeter
from dra_driver.metering.selection import Selection, default_selection, read_selection
from dra_driver.metering.subjects import LabelStyle
from dra_driver.model.vendors import registered_or_default
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

# For a vendor that measures but has no metric names of its own: only the series about claims and hours, by GPU.
_NO_NAMES = MetricNames((), gpu_labels=lambda index, gpu: (("gpu", str(index)), ("pci_bus_id", gpu.pci_address)))


def make_meter(node: OpenedNode, hardware: Metered, wanted: TelemetryOptions, inventory: CurrentInventory) -> NodeMeter:
    """Return the meter of a node. Raises: InputError for a counters file that can't be used."""
    names = _names(node.hardware.vendor)
    selection = _selection(names, wanted.counters)
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


def _selection(names: MetricNames, file: Path | None) -> Selection:
    if file is None or not names.takes_counters_file:
        return default_selection(names)
    selection = read_selection(file, names)
    if selection.unknown:
        log.warning(
            "counters that are not known are left out", extra=fields(reason=", ".join(selection.unknown)[:1000])
        )
    return selection
