"""Literals of containers: the types of the lists, maps and messages that are written in an expression.

In: the nodes, whose parts the checker checks first. Out: types, or faults.

Source: cel-go's checker. Messages, their positions and their order are Kubernetes' own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from dra_driver.selectors.checking.declarations import Declarations
from dra_driver.selectors.checking.names import DEVICE, Names, without_dot
from dra_driver.selectors.syntax.nodes import (
    Entry,
    ListLiteral,
    MapLiteral,
    Message,
    Node,
)
from dra_driver.selectors.values.bindings import Bindings
from dra_driver.selectors.values.messages import MESSAGE_FIELDS, message_name
from dra_driver.selectors.values.types import (
    ERROR,
    Type,
    is_optional,
    list_of,
    map_of,
    optional_of,
)


class Literals(Names, ABC):
    """The part of the checker that determines the types of list, map and message literals."""

    __slots__ = ("_bindings",)

    def __init__(self, declarations: Declarations) -> None:
        super().__init__(declarations)
        self._bindings = Bindings()

    @abstractmethod
    def check(self, node: Node) -> None:
        """Check one node and everything below it."""

    def _unwrapped(self, node: Node) -> Type:
        """Return the type of the value inside an optional entry."""
        found = node.type
        if is_optional(found):
            return found.params[0]
        if found.kind not in {"dyn", "any"}:
            self._fault(node, f"expected type '{optional_of(found)}' but found '{found}'")
        return found

    def _list(self, node: ListLiteral) -> None:
        joined: Type | None = None
        for index, element in enumerate(node.elements):
            self.check(element)
            found = self._unwrapped(element) if index in node.optional else element.type
            if found is not joined:
                joined = self._bindings.join(joined, found)
        node.type = list_of(joined if joined is not None else self._bindings.fresh())

    def _map(self, node: MapLiteral) -> None:
        keys: Type | None = None
        values: Type | None = None
        for entry in node.entries:
            assert entry.key is not None  # noqa: S101
            self.check(entry.key)
            keys = self._bindings.join(keys, entry.key.type)
            self.check(entry.value)
            found = self._unwrapped(entry.value) if entry.optional else entry.value.type
            values = self._bindings.join(values, found)
        if keys is None or values is None:
            keys, values = self._bindings.fresh(), self._bindings.fresh()
        node.type = map_of(keys, values)

    def _message(self, node: Message) -> None:
        name = without_dot(node.name)
        local = self._locals.get(name)
        found = local[-1] if local else self._global(name)
        if found is None:
            node.type = ERROR
            self._fault(node, f"undeclared reference to '{node.name}' (in container '')")
            return
        node.name = name
        result = ERROR
        if found.kind == "type" and found.params:
            result = found.params[0]
            name = message_name(name)
            if name not in MESSAGE_FIELDS and name != DEVICE.name:
                self._fault(node, f"'{result.name}' is not a message type")
                result = ERROR
        elif found.kind == "type":
            self._fault(node, "'type' is not a message type")
        elif found.kind != "error":
            self._fault(node, f"'{found.long()}' is not a type")
        node.type = result
        for entry in node.entries:
            self._initializer(entry, name)

    def _initializer(self, entry: Entry, struct: str) -> None:
        self.check(entry.value)
        wanted = self._struct_field(entry, struct, entry.field)
        given = self._unwrapped(entry.value) if entry.optional else entry.value.type
        if not self._bindings.assignable(wanted, given):
            message = f"expected type of field '{entry.field}' is '{wanted}' but provided type is '{given}'"
            self._fault(entry, message)
