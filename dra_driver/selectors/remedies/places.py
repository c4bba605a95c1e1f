"""Names in the wrong place.

They lack their domain, are read as fields of `device`, are looked up as attributes although they are capacities, are
written in another case, or are texts without quotes. In: a tree with the names that devices have. Out: mistakes. A name
that devices have at the place where it is read is never a mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from dra_driver.selectors.remedies.mistake import Mistake, WrittenExpression, place_of, quoted, steps_of
from dra_driver.selectors.remedies.names import ATTRIBUTES, CAPACITY, NOUNS, KnownNames, NamePlace
from dra_driver.selectors.syntax.nodes import Call, Comprehension, Ident, ListLiteral, Node, Select, qualified_name

_RULE = "unknown-name"
_CLOSE_DOMAIN = 0.8
_FIELDS = ("driver", ATTRIBUTES, CAPACITY, "allowMultipleAllocations")
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
    if field and field != steps[0]:
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
    domains += [one for one in names.domains if one.endswith(f".{place.domain}")]
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
