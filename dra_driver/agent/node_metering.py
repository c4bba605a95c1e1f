"""Node metering: the meter of this node, made from the agent's options."""

from __future__ import annotations

import logging
from pathlib import Path

from dra_driver.agent.opened_node import OpenedNode
from dra_driver.agent.options import TelemetryOptions
from dra_driver.hardware.port import Metered
from dra_driver.inventory.offering import CurrentInventory
from dra_driver.metering.node_meter import MeterSettings, NodeMeter
from dra_driver.metering.selection import DEFAULT, Selection, read_selection
from dra_driver.metering.subjects import LabelStyle
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)


def make_meter(node: OpenedNode, hardware: Metered, wanted: TelemetryOptions, inventory: CurrentInventory) -> NodeMeter:
    """Return the meter of a node. Raises: InputError for a counters file that can't be used."""
    selection = _selection(wanted.counters)
    style = LabelStyle(node.options.node, node.identity.driver, wanted.hostname_label, selection.labels)
    settings = MeterSettings(
        style,
        pool=node.identity.pool,
        beat_s=wanted.interval_s,
        with_profiling=wanted.with_profiling,
        has_common_names=wanted.has_common_names,
        selection=selection,
        repeats_gpu=wanted.repeats_gpu,
        proc=Path(node.options.roots.proc),
    )
    return NodeMeter(hardware, node.ledger, node.kubelet, settings=settings, inventory=inventory)


def _selection(file: Path | None) -> Selection:
    if file is None:
        return DEFAULT
    selection = read_selection(file)
    if selection.unknown:
        log.warning(
            "counters that are not known are left out", extra=fields(reason=", ".join(selection.unknown)[:1000])
        )
    return selection
