"""What an expression reads of a device, so that equal devices are judged once.

In: compiled selectors. Out: a `Reading` that gives each device a key; devices with equal keys get equal verdicts. An
expression that does more than read named attributes and capacities gives every device a key of its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from dra_driver.allocation.devices import DeviceRecord
from dra_driver.model.semver import Semver, SemverError
from dra_driver.model.wire import Wire
from dra_driver.selectors.nodes import (
    Call,
    Comprehension,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    Message,
    Node,
    Select,
)

Read = tuple[str, str, str]  # attributes or capacity, domain, name
_PLAIN_KINDS = frozenset({"string", "int", "bool"})
_versions: dict[str, bool] = {}


class Reading:
    """What some selectors together read. `reads` is None where that can't be told."""

    __slots__ = ("_keys", "reads")

    def __init__(self, reads: frozenset[Read] | None) -> None:
        self.reads = reads
        self._keys: dict[str, tuple[list[str], list[str]]] = {}  # driver → wire keys of attributes, of capacity

    def key(self, device: DeviceRecord) -> Hashable:
        """Give the device's key."""
        wire = device.wire
        attributes = wire.get("attributes") or {}
        if self.reads is None or not _is_plain(attributes):
            return device.id, id(device)
        keys = self._keys.get(device.driver)
        if keys is None:
            keys = self._keys[device.driver] = self._wire_keys(device.driver)
        values: list[Any] = [device.driver, device.is_shared]
        for name in keys[0]:
            held = attributes.get(name)
            if held is None:
                values.append(None)
            else:
                values.extend(held.items())
        if keys[1]:
            capacity = wire.get("capacity") or {}
            for name in keys[1]:
                held = capacity.get(name)
                values.append(None if held is None else held.get("value"))
        return tuple(values)

    def _wire_keys(self, driver: str) -> tuple[list[str], list[str]]:
        """Give the names under which a driver's devices hold what is read."""
        keys: tuple[list[str], list[str]] = ([], [])
        for where, domain, name in sorted(self.reads or ()):
            into = keys[0] if where == "attributes" else keys[1]
            into.append(f"{domain}/{name}")
            if domain == driver:
                into.append(name)
        return keys


def _is_plain(attributes: dict[str, Wire]) -> bool:
    """Tell whether the server can convert every attribute, whatever an expression reads."""
    for attribute in attributes.values():
        if len(attribute) != 1:
            return False
        (kind,) = attribute
        if kind not in _PLAIN_KINDS and (kind != "version" or not _is_version(attribute["version"])):
            return False
    return True


def _is_version(text: Any) -> bool:
    if type(text) is not str:
        return False
    known = _versions.get(text)
    if known is None:
        try:
            Semver.parse(text)
            known = True
        except SemverError:
            known = False
        _versions[text] = known
    return known


def reading_of(roots: Iterable[Node]) -> Reading:
    """Find what the expressions with these roots read."""
    reads: set[Read] = set()
    if all(_collect(root, reads) for root in roots):
        return Reading(frozenset(reads))
    return Reading(None)


def _collect(node: Node, reads: set[Read]) -> bool:
    """Add what a node reads; tell whether that is all it can read (if not, what was added counts for nothing)."""
    if isinstance(node, (Select, Call)):
        read = _read(node)
        if read is not None:
            if read[1]:
                reads.add(read)
            return True
    if isinstance(node, Ident):
        return node.name != "device"
    return all(_collect(child, reads) for child in _children(node))


def _read(node: Select | Call) -> Read | None:
    """Give what `device.attributes["domain"].name` and its like read; domain "" for fields of the device itself."""
    parent: Node
    if isinstance(node, Select):
        parent, name = node.operand, node.field
        if isinstance(parent, Ident) and parent.name == "device" and name in {"driver", "allowMultipleAllocations"}:
            return (name, "", "")
    elif node.function in {"_[_]", "@in"} and len(node.args) == 2:
        parent, key = node.args if node.function == "_[_]" else (node.args[1], node.args[0])
        if not isinstance(key, Literal) or type(key.value) is not str:
            return None
        name = key.value
    else:
        return None
    if not isinstance(parent, Call) or parent.function != "_[_]" or len(parent.args) != 2:
        return None
    where, domain = parent.args
    if not isinstance(domain, Literal) or type(domain.value) is not str or not isinstance(where, Select):
        return None
    if where.test or where.field not in {"attributes", "capacity"}:
        return None
    if not isinstance(where.operand, Ident) or where.operand.name != "device":
        return None
    return (where.field, domain.value, name)


def _children(node: Node) -> list[Node]:
    if isinstance(node, Select):
        return [node.operand]
    if isinstance(node, Call):
        return [*node.args] if node.target is None else [node.target, *node.args]
    if isinstance(node, ListLiteral):
        return list(node.elements)
    if isinstance(node, (MapLiteral, Message)):
        return [part for entry in node.entries for part in (entry.key, entry.value) if part is not None]
    if isinstance(node, Comprehension):
        return [node.range, node.init, node.cond, node.step, node.result]
    return []
