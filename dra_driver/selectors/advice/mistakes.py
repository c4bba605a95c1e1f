"""Names in the wrong place.

They lack their domain, are read as fields of `device`, are looked up as attributes although they are capacities, are
written in another case, or are texts without quotes. In: a tree with the names that devices have. Out: mistakes. A name
that devices have at the place where it is read is never a mistake.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from dra_driver.base.flags import VENDORS
from dra_driver.base.versions import Semver
from dra_driver.selectors.evaluate.program import DeviceView
from dra_driver.selectors.parse.tree import (
    Call,
    Comprehension,
    Ident,
    ListLiteral,
    Literal,
    Node,
    Select,
    all_nodes,
    qualified_name,
    replaced,
    text_of,
)
from dra_driver.selectors.values.values import CelQuantity

# The names that devices have, and their values, for comparison with those in an expression.

ATTRIBUTES, CAPACITY = "attributes", "capacity"
NOUNS = {ATTRIBUTES: "attribute", CAPACITY: "capacity"}
_MAX_VALUES = 256
_CLOSE = 0.75


@dataclass(frozen=True, slots=True)
class NamePlace:
    """The place of a name: in the attributes or in the capacities of a domain."""

    field: str
    domain: str
    name: str

    @property
    def text(self) -> str:
        """The expression that reads it."""
        return f'device.{self.field}["{self.domain}"].{self.name}'


@dataclass(slots=True)
class _SeenNames:
    kinds: set[str]
    values: set[Any]


class KnownNames:
    """The names of a fleet by place, with their kinds (string, int, bool, version, quantity, list) and some values.

    Unless `is_of_devices`, they are those that this driver publishes: others may exist.
    """

    def __init__(self) -> None:
        self._held: dict[NamePlace, _SeenNames] = {}
        self.is_of_devices = True

    @classmethod
    def of(cls, views: Iterable[DeviceView]) -> KnownNames:
        """Return the names of some devices; without devices, those that this driver publishes."""
        made = cls()
        for view in views:
            for field, domains in ((ATTRIBUTES, view.attributes), (CAPACITY, view.capacity)):
                for domain, names in domains.items():
                    for name, value in names.items():
                        made._add(NamePlace(field, domain, name), kind_of_value(value), value)
        if not made._held:
            made.is_of_devices = False
            made._add_published()
        return made

    def kind(self, place: NamePlace) -> str:
        """Return the kind of a name's values, or "" where they differ or are unknown."""
        held = self._held.get(place)
        return next(iter(held.kinds)) if held and len(held.kinds) == 1 else ""

    def values(self, place: NamePlace) -> set[Any]:
        """Return values of a name; at most 256, and none for names that occur only in this driver's table."""
        held = self._held.get(place)
        return held.values if held else set()

    def __contains__(self, place: NamePlace) -> bool:
        return place in self._held

    @property
    def domains(self) -> set[str]:
        """All domains."""
        return {place.domain for place in self._held}

    def find(self, name: str, *, domain: str = "", field: str = "", is_close: bool = True) -> list[NamePlace]:
        """List the places of a name; without any, those of the name in another case, else of close names."""
        places = list(self._matching(domain, field))
        if exact := [place for place in places if place.name == name]:
            return exact
        if same := [place for place in places if place.name.lower() == name.lower()]:
            return same
        if not is_close:
            return []
        by_lower: dict[str, list[NamePlace]] = {}
        for place in places:
            by_lower.setdefault(place.name.lower(), []).append(place)
        near = get_close_matches(name.lower(), list(by_lower), n=1, cutoff=_CLOSE)
        return [place for one in near for place in by_lower[one]]

    def find_value(self, value: str, *, domain: str) -> NamePlace | None:
        """Return the place of a domain where devices have this text, or None."""
        return next(
            (place for place, held in self._held.items() if place.domain == domain and value in held.values), None
        )

    def _matching(self, domain: str, field: str) -> Iterator[NamePlace]:
        for place in self._held:
            if domain in ("", place.domain) and field in ("", place.field):
                yield place

    def _add(self, place: NamePlace, kind: str, value: Any = None) -> None:
        held = self._held.setdefault(place, _SeenNames(set(), set()))
        held.kinds.add(kind)
        if kind in {"string", "version", "quantity"} and len(held.values) < _MAX_VALUES:
            held.values.add(value.number if isinstance(value, CelQuantity) else value)

    def _add_published(self) -> None:
        from dra_driver.hardware.vendors import load_vendor  # noqa: PLC0415  (rarely needed)

        for vendor in VENDORS:
            for row in load_vendor(vendor.name).rows:
                domain, slash, name = row.name.rpartition("/")
                field = CAPACITY if row.kind == "quantity" else ATTRIBUTES
                place = NamePlace(field, domain if slash else vendor.driver, name)
                self._held.setdefault(place, _SeenNames(set(), set())).kinds.add(str(row.kind))


def kind_of_value(value: Any) -> str:
    """Return the kind of an attribute's or capacity's value."""
    if isinstance(value, CelQuantity):
        return "quantity"
    if isinstance(value, Semver):
        return "version"
    return {bool: "bool", int: "int", str: "string", list: "list"}.get(type(value), "")


# A mistake that one rule found, and the expression in which rules look for mistakes.

_STEPS = frozenset({"_[_]", "_[?_]", "_?._"})


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake: its lint rule, a sentence, the clause, and the whole expression with the mistake corrected, or "".

    `about` is the unknown name (domain/name) or domain, if that is the mistake. `start` is the clause's offset. With
    `is_guess`, the author may have meant something else, so that nothing is corrected without being asked for.
    """

    rule: str
    message: str
    clause: str
    text: str
    about: str = ""
    start: int = 0
    is_guess: bool = False


@dataclass(frozen=True, slots=True)
class WrittenExpression:
    """An expression that may have mistakes, as text and as a tree, with the names that devices have."""

    expression: str
    root: Node
    names: KnownNames

    def nodes(self) -> list[Node]:
        """Return all nodes that have text of their own."""
        return [node for node in all_nodes(self.root) if hasattr(node, "start")]

    def text(self, node: Node) -> str:
        """Return the text of a node."""
        return text_of(node, self.expression)

    def mistake(self, rule: str, message: str, node: Node, text: str, about: str = "") -> Mistake:
        """Return the mistake that is corrected by writing `text` in place of a node."""
        return Mistake(rule, message, self.text(node), replaced(self.expression, node, text), about, node.start)

    def kind(self, node: Node) -> str:
        """Return the kind of a node's value, by its type or by what devices have under its name; "" if unknown."""
        if type(node) is Literal:
            return _LITERALS.get(type(node.value), "")
        known = {"kubernetes.Quantity": "quantity", "kubernetes.Semver": "version", "string": "string"}
        by_type = known.get(node.type.long(), "")
        place = place_of(node)
        return by_type or (self.names.kind(place) if place else "")


_LITERALS = {str: "string", int: "number", float: "number", bool: "bool"}


def steps_of(node: Node) -> list[str] | None:
    """Return the path from `device` to a node, such as ["attributes", "gpu.nvidia.com", "type"], or None."""
    found: list[str] = []
    while True:
        if type(node) is Select:
            found.append(node.field)
            node = node.operand
        elif type(node) is Call and node.function in _STEPS and type(node.args[1]) is Literal:
            if type(node.args[1].value) is not str:
                return None
            found.append(node.args[1].value)
            node = node.args[0]
        else:
            return found[::-1] if type(node) is Ident and node.name == "device" else None


def place_of(node: Node) -> NamePlace | None:
    """Return the name that a node reads, or None if it reads no single name."""
    if type(node) is Call and node.function in {"orValue", "value"} and node.target is not None:
        node = node.target
    steps = steps_of(node)
    if steps is None or len(steps) != 3 or steps[0] not in {"attributes", "capacity"}:
        return None
    return NamePlace(*steps)


def quoted(text: str) -> str:
    """Return a text as a CEL literal."""
    return json.dumps(text, ensure_ascii=False)


_RULE = "unknown-name"
_CLOSE_DOMAIN = 0.8
_FIELDS = ("driver", ATTRIBUTES, CAPACITY, "allowMultipleAllocations")
_UNSEEN = {
    "name": "uuid tells one device from another",
    **dict.fromkeys(("node", "nodeName", "pool", "hostname"), "choose nodes with the pod's nodeSelector"),
}
_FIELD_SLIPS = {"attribute": ATTRIBUTES, "attr": ATTRIBUTES, "attrs": ATTRIBUTES, "capacities": CAPACITY}


def place_mistakes(written: WrittenExpression) -> Iterator[Mistake]:
    """Yield the names in the wrong place; of nested reads only the outermost is examined."""
    nodes = written.nodes()
    inner = {id(_operand(node)) for node in nodes} - {id(None)}
    bound = {name for node in nodes if type(node) is Comprehension for name in (node.var, node.var2, node.accu)}
    keyed = _texts_wanted(nodes)
    meant = _attributes_called_type(nodes)
    for node in nodes:
        base = _base(node)
        if type(base) is Ident and base.name == "device" and id(node) not in inner:
            yield from _misplaced(written, node)
        elif type(node) is Call and node.function.lower() == "not" and node.target is None and len(node.args) == 1:
            text = f"!({written.text(node.args[0])})"
            yield written.mistake("refused", "CEL has no operator `not`: write !(…)", node, text)
        elif type(base) is not Ident or base.name in bound or id(node) in inner:
            continue
        elif base.type.long() == "*error*" or id(node) in meant:
            yield from _undeclared(written, node, base, is_text=id(node) in keyed)


def _operand(node: Node) -> Node | None:
    """Return the node from which a field or key is read, or None for any other node."""
    if type(node) is Select:
        return node.operand
    if type(node) is Call and node.function in {"_[_]", "_[?_]", "_?._"}:
        return node.args[0]
    return None


def _base(node: Node) -> Node:
    """Return the name with which a path begins, or the node itself if it is not a path."""
    while (inner := _operand(node)) is not None:
        node = inner
    return node


def _texts_wanted(nodes: list[Node]) -> set[int]:
    """Return the ids of nodes that may be texts: operands of == and !=, keys, list elements, arguments."""
    found: set[int] = set()
    for node in nodes:
        if type(node) is Call:
            if node.function in {"_==_", "_!=_"}:
                found |= set(map(id, node.args))
            elif node.function == "_[_]" or node.target is not None:
                found |= {id(node.args[-1])} if node.args else set()
        elif type(node) is ListLiteral:
            found |= set(map(id, node.elements))
    return found


def _attributes_called_type(nodes: list[Node]) -> set[int]:
    """Return the ids of `type` where it is compared with a text: CEL's own `type` never equals one."""
    found: set[int] = set()
    for node in nodes:
        if type(node) is Call and node.function in {"_==_", "_!=_"}:
            for one, other in (node.args, node.args[::-1]):
                if type(one) is Ident and one.name == "type" and other.type.long() in {"string", "*error*"}:
                    found.add(id(one))
    return found


def _undeclared(written: WrittenExpression, node: Node, base: Ident, *, is_text: bool) -> Iterator[Mistake]:
    """Explain an undeclared word: a name that needs its domain, or a text that needs quotes."""
    name, whole = base.name, qualified_name(node) if type(node) is not Ident else base.name
    if name.lower() == "device":
        text = f"device{written.expression[base.end : node.end]}"
        yield written.mistake(_RULE, f"the variable is written device, not {name}", node, text)
        return
    if name in _FIELDS:
        text = f"device.{written.text(node)}"
        yield written.mistake(_RULE, f"{name} is a field of device: device.{name}", node, text)
        return
    if name in {"True", "False"}:
        yield written.mistake(_RULE, f"{name} is written {name.lower()}", node, name.lower())
        return
    if name == "None":
        yield written.mistake(_RULE, "None is written null", node, "null")
        return
    exact = written.names.find(name, is_close=False)
    if exact and not (is_text and exact[0].name != name):
        rest = written.expression[base.end : node.end]
        yield written.mistake(_RULE, f"{name} is {_sentence(exact[0])}", node, exact[0].text + rest)
    elif is_text and whole:
        yield written.mistake(_RULE, f"{whole} is not a name: a text needs quotes", node, quoted(whole))
    elif near := written.names.find(name):
        rest = written.expression[base.end : node.end]
        yield written.mistake(
            _RULE, f"there is no {name}; {near[0].name} is {_sentence(near[0])}", node, near[0].text + rest
        )


def _misplaced(written: WrittenExpression, node: Node) -> Iterator[Mistake]:
    """Compare a path below `device` with the names that devices have."""
    steps = steps_of(node)
    if not steps:
        return
    field = _FIELD_SLIPS.get(steps[0].lower()) or next((f for f in _FIELDS if f.lower() == steps[0].lower()), "")
    if steps[0] in _UNSEEN and not field:
        place = next(iter(written.names.find("uuid")), None) if steps[0] == "name" else None
        text = replaced(written.expression, node, place.text) if place else ""
        yield Mistake(_RULE, f"a selector does not see {steps[0]}: {_UNSEEN[steps[0]]}", written.text(node), text)
    elif steps[0] == "basic" and len(steps) > 1:
        text = written.text(node).replace("device.basic.", "device.", 1)
        yield written.mistake(_RULE, "leave .basic out: only an old version of the API's objects has it", node, text)
    elif field and field != steps[0]:
        yield written.mistake(_RULE, f"device has no {steps[0]}; it has {field}", node, _renamed(written, node, field))
    elif not field:
        if places := written.names.find(steps[0]):
            text = _as_written(node, places[0])
            yield written.mistake(
                _RULE, f"device has no {steps[0]}: {places[0].name} is {_sentence(places[0])}", node, text
            )
    elif field in {ATTRIBUTES, CAPACITY} and len(steps) == 2:
        yield from _without_domain(written, node, field, steps[1])
    elif place := place_of(node):
        yield from _wrong_place(written, node, place)


def _renamed(written: WrittenExpression, node: Node, field: str) -> str:
    """Return the text of a path with another field of device."""
    inner: Node = node
    while (operand := _operand(inner)) is not None and type(operand) is not Ident:
        inner = operand
    return f"device.{field}{written.expression[inner.end : node.end]}"


def _without_domain(written: WrittenExpression, node: Node, field: str, key: str) -> Iterator[Mistake]:
    """Report a name that is read as if it were a domain."""
    domain, slash, name = key.rpartition("/")
    if key in written.names.domains:
        return
    places = written.names.find(name, domain=domain if slash else "", field="", is_close=bool(slash))
    places.sort(key=lambda place: place.field != field)
    if not places:
        if "." not in key:
            domain = next((one for one in sorted(written.names.domains) if key in one), "DOMAIN")
            message = f'"{key}" is neither a domain nor a name here: write device.{field}["{domain}"].NAME'
            yield Mistake(_RULE, message, written.text(node), "", start=node.start)
        return
    missing = f"the domain is missing: {places[0].name} is {_sentence(places[0])}"
    problem = f"{key!r} is not a domain" if slash else missing
    message = f"{problem}: {places[0].text}" if slash else problem
    yield written.mistake(_RULE, message.replace("'", '"'), node, _as_written(node, places[0]), key)


def _wrong_place(written: WrittenExpression, node: Node, place: NamePlace) -> Iterator[Mistake]:
    """Report a name that no device has there, and where it is."""
    if place in written.names:
        return
    other = CAPACITY if place.field == ATTRIBUTES else ATTRIBUTES
    known = place.domain in written.names.domains
    exact = NamePlace(other, place.domain, place.name)
    noun = NOUNS[place.field]
    if exact in written.names:
        wrong = f"{_article(place.field)} {noun}"
        message = f"{place.domain}/{place.name} is {_article(other)} {NOUNS[other]}, not {wrong}: {exact.text}"
        yield written.mistake(_RULE, message, node, _as_written(node, exact), f"{place.domain}/{place.name}")
    elif near := _near(written.names, place):
        message = f"no device has the {noun} {place.domain}/{place.name}; {near[0].name} is {_sentence(near[0])}"
        about = f"{place.domain}/{place.name}" if known else place.domain
        yield written.mistake(_RULE, message, node, _as_written(node, near[0]), about)


def _near(names: KnownNames, place: NamePlace) -> list[NamePlace]:
    """List the places that may be meant: in the same domain, else in a domain with a similar name."""
    if place.domain in names.domains:
        own = names.find(place.name, domain=place.domain, field=place.field, is_close=names.is_of_devices)
        return own or names.find(place.name, domain=place.domain, is_close=names.is_of_devices)
    domains = get_close_matches(place.domain, names.domains, n=3, cutoff=_CLOSE_DOMAIN)
    domains += [one for one in names.domains if one.endswith(f".{place.domain}") or one.startswith(f"{place.domain}.")]
    return [one for domain in domains for one in names.find(place.name, domain=domain, is_close=False)]


def _as_written(node: Node, place: NamePlace) -> str:
    """Return the text that reads a place, as a presence test or with a fallback where the node is one."""
    if type(node) is Select and node.test:
        return f"has({place.text})"
    if type(node) is Call and node.function in {"_?._", "_[?_]"}:
        return f'device.{place.field}["{place.domain}"].?{place.name}'
    return place.text


def _article(field: str) -> str:
    return "an" if field == ATTRIBUTES else "a"


def _sentence(place: NamePlace) -> str:
    return f"{_article(place.field)} {NOUNS[place.field]} of {place.domain}: {place.text}"
