"""The parts with which an agent tests its devices; they are created only if `--validate` is not `none`."""

from __future__ import annotations

from dra_driver.agent.change_listener import ChangeListener
from dra_driver.agent.device_holders import NodeDeviceHolders
from dra_driver.agent.inventory.node_inventory import NodeInventory
from dra_driver.agent.opened_node import OpenedNode
from dra_driver.agent.other_drivers import OtherDrivers
from dra_driver.agent.validation.validation_gate import ValidationGate
from dra_driver.health.store import HealthStore
from dra_driver.plugin.node_claims.allocations import AllocatedDevices
from dra_driver.validation.records import ValidationRecords
from dra_driver.validation.result import ValidationLevel
from dra_driver.validation.setting import ValidationSetting
from dra_driver.validation.validation_lock import ValidationLock


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
        from dra_driver.validation.validator import Validator  # noqa: PLC0415 - only where devices are tested

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
