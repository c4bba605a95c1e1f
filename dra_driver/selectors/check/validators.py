"""Checks of literals, made after type checking.

In: a checked tree. Out: faults: mixed lists and maps, bad durations and timestamps, bad patterns, and format strings
that do not fit their arguments.

Source: cel-go's AST validators as Kubernetes configures them. (`matches` is judged by its first *argument*, which in
the global form is the text and not the pattern.)
"""

from __future__ import annotations

from collections.abc import Callable

from dra_driver.selectors.check.declarations import Declarations
from dra_driver.selectors.functions.formats import REFUSALS, BadArgument, BadClause, walk
from dra_driver.selectors.functions.strings import BadPattern, compile_pattern
from dra_driver.selectors.functions.time import CONVERSIONS
from dra_driver.selectors.parse.lexer import SyntaxFault
from dra_driver.selectors.parse.tree import Call, Entry, Ident, ListLiteral, Literal, MapLiteral, Node, children
from dra_driver.selectors.values.messages import ENUM_VALUES, MESSAGE_FIELDS, MESSAGE_TYPES
from dra_driver.selectors.values.types import ERROR, INT, Type, type_of
from dra_driver.selectors.values.values import CelError

_STRINGS = frozenset(
    {"bool", "int", "uint", "double", "string", "bytes", "null", "list", "map", "type", "timestamp", "duration"}
)
_ACCEPTED = {
    "s": _STRINGS,
    "d": frozenset({"int", "uint"}),
    "o": frozenset({"int", "uint"}),
    "f": frozenset({"double", "string"}),
    "e": frozenset({"double", "string"}),
    "b": frozenset({"int", "uint", "bool"}),
    "x": frozenset({"int", "uint", "string", "bytes"}),
    "X": frozenset({"int", "uint", "string", "bytes"}),
}


def validate(root: Node) -> list[SyntaxFault]:
    """Check the literals of a tree and return the faults.

    Raises:
        CompilerPanic: Kubernetes' own compiler crashes on the tree.
    """
    faults: list[SyntaxFault] = []
    pending: list[tuple[Node, bool]] = [(root, False)]
    while pending:
        node, formatted = pending.pop()
        if type(node) is Call:
            check = _CALLS.get(node.function)
            if check is not None:
                check(node, faults)
                formatted = formatted or node.function == "format"
        elif not formatted:
            if type(node) is ListLiteral:
                _list(node, faults)
            elif type(node) is MapLiteral:
                _map(node, faults)
        pending.extend([(child, formatted) for child in children(node)])
    return faults


def _mismatch(node: Node, wanted: Type, found: Type) -> SyntaxFault:
    return SyntaxFault(node.offset, f"expected type '{wanted}' but found '{found}'")


class CompilerPanic(Exception):
    """Kubernetes' own compiler crashes on the expression."""


def _entry_type(node: Node, *, optional: bool) -> Type:
    """Return the type of an entry; for an optional entry, the first parameter of its type.

    Raises:
        CompilerPanic: The optional type has no parameter; the server reads the parameter unchecked.
    """
    if not optional:
        return node.type
    if not node.type.params:
        raise CompilerPanic("index out of range [0] with length 0")
    return node.type.params[0]


def _list(node: ListLiteral, faults: list[SyntaxFault]) -> None:
    first: Type | None = None
    for position, element in enumerate(node.elements):
        found = _entry_type(element, optional=position in node.optional)
        if first is None:
            first = found
        elif found is not first and found != first:
            faults.append(_mismatch(element, first, found))
            return


def _map(node: MapLiteral, faults: list[SyntaxFault]) -> None:
    first: tuple[Type, Type] | None = None
    for entry in node.entries:
        assert entry.key is not None  # noqa: S101
        found = entry.key.type, _entry_type(entry.value, optional=entry.optional)
        if first is None:
            first = found
            continue
        if found[0] != first[0]:
            faults.append(_mismatch(entry.key, first[0], found[0]))
        if found[1] != first[1]:
            faults.append(_mismatch(entry.value, first[1], found[1]))


def _converts(node: Call, faults: list[SyntaxFault]) -> None:
    argument = node.args[0] if node.args else None
    if type(argument) is not Literal:
        return
    convert = CONVERSIONS[node.function].get((type(argument.value),))
    try:
        if convert is not None:
            convert(argument.value)
            return
    except CelError:
        pass
    faults.append(SyntaxFault(argument.offset, f"invalid {node.function} argument"))


def _matches(node: Call, faults: list[SyntaxFault]) -> None:
    argument = node.args[0] if node.args else None
    if type(argument) is not Literal or type(argument.value) is not str:
        return
    try:
        compile_pattern(argument.value)
    except BadPattern:
        faults.append(SyntaxFault(argument.offset, "invalid matches argument"))


def _format(node: Call, faults: list[SyntaxFault]) -> None:
    template, arguments = node.target, node.args[0] if node.args else None
    if type(template) is not Literal or type(template.value) is not str or type(arguments) is not ListLiteral:
        return
    elements = arguments.elements

    def write(verb: str, _: int | None, position: int) -> str:
        wrong = _unprintable(elements[position], verb)
        if wrong is not None:
            raise BadArgument(REFUSALS[verb].format(_runtime_name(wrong.type)), wrong)
        return ""

    try:
        used = walk(template.value, len(elements), write)[1]
    except BadArgument as bad:
        faults.append(SyntaxFault(bad.about.offset if bad.about is not None else node.offset, str(bad)))
    except BadClause as bad:
        faults.append(SyntaxFault(node.offset, str(bad)))
    else:
        if len(elements) > used:
            message = f"too many arguments supplied to string.format (expected {used}, got {len(elements)})"
            faults.append(SyntaxFault(node.offset, message))


def _runtime_name(t: Type) -> str:
    """Return the name of a type without its parameters; well-known types have their protobuf names."""
    return t.long() if not t.params else t.name


def _unprintable(node: Node, verb: str) -> Node | None:
    """Find the node whose type the clause can't print: the node itself, or one inside its literal."""
    pending = [node]
    while pending:
        one = pending.pop()
        if one.type.kind != "dyn" and one.type.kind not in _ACCEPTED[verb]:
            return one
        if verb == "s" and type(one) in {ListLiteral, MapLiteral}:
            pending.extend(reversed(children(one)))
    return None


_CALLS: dict[str, Callable[[Call, list[SyntaxFault]], None]] = {
    "duration": _converts,
    "timestamp": _converts,
    "matches": _matches,
    "format": _format,
}


# Names: what an identifier or a field of a message refers to.

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
