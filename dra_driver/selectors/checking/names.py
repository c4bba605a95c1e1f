"""Names: what an identifier or a field of a message refers to.

In: the declarations, and the local variables of the comprehensions around an expression. Out: types, or faults.

Source: cel-go's checker, in which a local variable hides any declaration of the same name.
"""

from __future__ import annotations

from dra_driver.selectors.checking.declarations import Declarations
from dra_driver.selectors.syntax.nodes import (
    Entry,
    Ident,
    Node,
)
from dra_driver.selectors.syntax.source import SyntaxFault
from dra_driver.selectors.values.messages import ENUM_VALUES, MESSAGE_FIELDS, MESSAGE_TYPES
from dra_driver.selectors.values.types import (
    ERROR,
    INT,
    Type,
    type_of,
)

DEVICE = MESSAGE_TYPES["kubernetes.DRADevice"]


class Names:
    """The part of the checker that resolves names; it also collects the faults."""

    __slots__ = ("_declarations", "_locals", "faults")

    def __init__(self, declarations: Declarations) -> None:
        self._declarations = declarations
        self._locals: dict[str, list[Type]] = {}
        self.faults: list[SyntaxFault] = []

    def _name(self, node: Ident) -> None:
        name = without_dot(node.name)
        local = self._locals.get(name)
        if local:
            node.name, node.type = name, local[-1]
            return
        found = self._global(name)
        if found is None:
            node.type = ERROR
            self._fault(node, f"undeclared reference to '{node.name}' (in container '')")
            return
        node.name, node.type = name, found
        if name != "device":
            node.declared = name

    def _global(self, name: str) -> Type | None:
        """Return the type of a name that is not a local variable."""
        if name == "device":
            return DEVICE
        declared = self._declarations.identifiers.get(name)
        if declared is not None:
            return declared
        if name in ENUM_VALUES:
            return INT
        message = MESSAGE_TYPES.get(name)
        return type_of(message) if message is not None else None

    def _struct_field(self, node: Node | Entry, struct: str, field: str) -> Type:
        fields = self._declarations.device_fields if struct == DEVICE.name else MESSAGE_FIELDS.get(struct)
        if fields is None:
            self._fault(node, f"unexpected failed resolution of '{struct}'")
            return ERROR
        found = fields.get(field)
        if found is None:
            self._fault(node, f"undefined field '{field}'")
            return ERROR
        return found

    def _declare(self, name: str, t: Type) -> None:
        self._locals.setdefault(name, []).append(t)

    def _fault(self, node: Node | Entry, message: str) -> None:
        self.faults.append(SyntaxFault(node.offset, message))


def without_dot(name: str) -> str:
    """Return a name without the dot that marks it as global."""
    return name.removeprefix(".")
