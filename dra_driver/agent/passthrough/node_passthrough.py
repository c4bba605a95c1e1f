"""The parts with which an agent hands GPUs to virtual machines; they are created only if a file names such GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dra_driver.agent.change_listener import ChangeListener
from dra_driver.agent.opened_node import OpenedNode
from dra_driver.agent.passthrough.passthrough_gpus import PassthroughGpus
from dra_driver.agent.passthrough.remembered_gpus import RememberedGpus
from dra_driver.agent.passthrough.returned_gpus import GpuTests, ReturnedGpus
from dra_driver.hardware.passthrough.writing import BusAccess, ChildWriter, OwnBus
from dra_driver.inventory.passthrough.rules import PassthroughRules


@dataclass(frozen=True, slots=True)
class NodePassthrough:
    """The parts: the bus, the GPUs for virtual machines, and the GPUs that come back from them."""

    access: BusAccess
    named: PassthroughGpus
    returned: ReturnedGpus


def make_passthrough(
    node: OpenedNode, path: Path | None, listener: ChangeListener, tests: GpuTests | None
) -> NodePassthrough:
    """Return the parts; without a file they only take back the GPUs that virtual machines still have.

    Raises: InputError for a file that can't be used.
    """
    rules = _rules(path).of_node(node.options.node) if path is not None else PassthroughRules()
    access = access_of(node)
    kept = RememberedGpus(node.options.data_dir, node.identity.boot_id)
    returned = ReturnedGpus(kept, node.hardware, access.roots, listener, tests)
    returned.stop()  # until this instance has the role
    return NodePassthrough(access, PassthroughGpus(rules, access.roots, kept), returned)


def _rules(path: Path) -> PassthroughRules:
    from dra_driver.inventory.passthrough.rules_file import read_passthrough_rules  # noqa: PLC0415 - pydantic, only for this

    return read_passthrough_rules(path)


def access_of(node: OpenedNode) -> BusAccess:
    """Return the node's PCI bus: this machine's own, or the one that simulated hardware has."""
    if isinstance(node.hardware, OwnBus):
        return node.hardware.bus_access()
    return BusAccess(node.options.roots, ChildWriter())
