"""Closures for accesses to fields of the device, and to any other field or element.

In: accesses. Out: closures. `device.attributes["domain"].name` becomes one closure, which reads the view of the device
without making any value for the parts before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dra_driver.selectors.evaluation.folds import Folds
from dra_driver.selectors.library.access import has_field
from dra_driver.selectors.library.access import index as read_index
from dra_driver.selectors.library.access import index_optional as read_optional
from dra_driver.selectors.syntax.nodes import (
    Call,
    Ident,
    Node,
    Select,
)
from dra_driver.selectors.values.values import CelError, Optional

Closure = Callable[[Any], Any]
_MAPS = frozenset({"attributes", "capacity"})


class Accesses(Folds):
    """The part of the compiler that handles accesses; the compiler itself supplies `emit`.

    `constants` holds the known values of nodes. With `framed`, closures take a frame, whose first slot holds the view;
    otherwise they take the view itself.
    """

    def __init__(self, constants: Mapping[Node, Any], *, shows_sharing: bool, framed: bool) -> None:
        super().__init__()
        self._constants = constants
        self._shows_sharing = shows_sharing
        self._framed = framed

    def select(self, node: Select) -> Closure:
        """Make the closure of `operand.field`, or of `has(operand.field)`."""
        operand, field = node.operand, node.field
        known = self.domain(operand)
        if node.test:
            if known is not None:
                domain_of = self._domain_closure(*known)
                return lambda frame: field in domain_of(frame)
            holder = self.emit(operand)
            return lambda frame: has_field(holder(frame), field)
        if self._is_device(operand):
            return self._device_field(field)
        if known is not None:
            return self._value_closure(*known, field)
        itself = self.domain(node)
        if itself is not None:
            return self._domain_closure(*itself)
        holder = self.emit(operand)

        def select(frame: Any) -> Any:
            found = holder(frame)
            if type(found) is dict:
                try:
                    return found[field]
                except KeyError:
                    raise CelError(f"no such key: {field}") from None
            return read_index(found, field)

        return select

    def index(self, node: Call) -> Closure:
        """Make the closure of `holder[key]`."""
        itself = self.domain(node)
        if itself is not None:
            return self._domain_closure(*itself)
        key = self._constants.get(node.args[1])
        known = self.domain(node.args[0])
        if known is not None and type(key) is str:
            return self._value_closure(*known, key)
        holder, position = self.emit(node.args[0]), self.emit(node.args[1])

        def at(frame: Any) -> Any:
            found = holder(frame)
            if type(found) is Optional and not found.present:
                return found
            return read_index(found, position(frame))

        return at

    def index_optional(self, node: Call) -> Closure:
        """Make the closure of `holder[?key]`, or of `holder.?key`."""
        holder, key = self.emit(node.args[0]), self.emit(node.args[1])

        def at(frame: Any) -> Any:
            found = holder(frame)
            if type(found) is Optional and not found.present:
                return found
            return read_optional(found, key(frame))

        return at

    def _is_device(self, node: Node) -> bool:
        return type(node) is Ident and node.name == "device" and not self.is_local("device")

    def _device_field(self, name: str) -> Closure:
        if name == "allowMultipleAllocations":
            shows = self._shows_sharing
            if self._framed:
                return lambda frame: frame[0].shared and shows
            return lambda view: view.shared and shows
        if self._framed:
            return {
                "driver": lambda frame: frame[0].driver,
                "attributes": lambda frame: frame[0].attributes,
                "capacity": lambda frame: frame[0].capacity,
            }[name]
        return {
            "driver": lambda view: view.driver,
            "attributes": lambda view: view.attributes,
            "capacity": lambda view: view.capacity,
        }[name]

    def domain(self, node: Node) -> tuple[str, str] | None:
        """Recognise `device.attributes["d"]` and `device.attributes.d`; return the field and the domain."""
        if type(node) is Call and node.function == "_[_]":
            holder, key = node.args[0], self._constants.get(node.args[1])
        elif type(node) is Select and not node.test:
            holder, key = node.operand, node.field
        else:
            return None
        if type(key) is not str or type(holder) is not Select or holder.field not in _MAPS:
            return None
        return (holder.field, key) if self._is_device(holder.operand) and not holder.test else None

    def _domain_closure(self, field: str, domain: str) -> Closure:
        if field == "attributes":
            if self._framed:
                return lambda frame: frame[0].attributes[domain]
            return lambda view: view.attributes[domain]
        if self._framed:
            return lambda frame: frame[0].capacity[domain]
        return lambda view: view.capacity[domain]

    def _value_closure(self, field: str, domain: str, name: str) -> Closure:
        """Make the closure of one attribute or capacity."""
        if self._framed:
            domain_of = self._domain_closure(field, domain)

            def framed(frame: Any) -> Any:
                try:
                    return domain_of(frame)[name]
                except KeyError:
                    raise CelError(f"no such key: {name}") from None

            return framed

        def attribute(view: Any) -> Any:
            try:
                return view.attributes[domain][name]
            except KeyError:
                raise CelError(f"no such key: {name}") from None

        def capacity(view: Any) -> Any:
            try:
                return view.capacity[domain][name]
            except KeyError:
                raise CelError(f"no such key: {name}") from None

        return attribute if field == "attributes" else capacity
