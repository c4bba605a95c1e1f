"""The parts of a device that an expression reads, found without evaluating it.

In: a checked tree. Out: a `ReadSet` of single attributes and capacities, whole domains, and whole maps. Devices that
agree on the read-set get the same verdict, so devices can be grouped by it. It also names the attributes that a
selector expects.

An access whose name is not a literal counts as reading the whole map.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from dra_driver.base.flags import VENDORS
from dra_driver.selectors.check.declarations import Declarations
from dra_driver.selectors.engine import SelectorCompileError
from dra_driver.selectors.evaluate.program import DeviceView
from dra_driver.selectors.parse.tree import Call, Comprehension, Ident, Literal, Node, Select, children

_Path = tuple[str, ...]
_MAPS = frozenset({"attributes", "capacity"})
_STEPS = frozenset({"_[_]", "_[?_]", "_?._"})


@dataclass(frozen=True, slots=True)
class Read:
    """One thing that is read: a field of the device or, with `domain` and `name`, only a part of that map."""

    field: str
    domain: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ReadSet:
    """Everything that an expression reads. `guarded` are the names that it also tests for, or reads with a fallback."""

    reads: frozenset[Read]
    guarded: frozenset[Read]

    def covers(self, other: ReadSet) -> bool:
        """Return whether this set includes everything that `other` reads."""
        mine = {(read.field, read.domain, read.name) for read in self.reads}
        for read in other.reads:
            wider = {(read.field, None, None), (read.field, read.domain, None), (read.field, read.domain, read.name)}
            if not wider & mine:
                return False
        return True


def read_set(root: Node) -> ReadSet:
    """Return what a checked tree reads."""
    reader = _Reader()
    reader.visit(root)
    return ReadSet(frozenset(reader.reads), frozenset(reader.guarded))


class _Reader:
    __slots__ = ("_aliases", "guarded", "reads")

    def __init__(self) -> None:
        self._aliases: dict[str, list[_Path | None]] = {}
        self.reads: set[Read] = set()
        self.guarded: set[Read] = set()

    def visit(self, node: Node) -> None:
        """Visit a node whose whole value is used."""
        path = self._path(node)
        if path is not None:
            self._record(path, guarded=_is_guard(node))
            self._visit_keys(node)
            return
        if type(node) is Comprehension:
            self._comprehension(node)
            return
        if type(node) is Call and node.function == "@in":
            held = self._path(node.args[1])
            needle = node.args[0]
            if held is not None and 2 <= len(held) <= 3 and type(needle) is Literal and type(needle.value) is str:
                self._record((*held, needle.value), guarded=True)
                return
        for child in children(node):
            self.visit(child)

    def _visit_keys(self, node: Node) -> None:
        """Visit the expressions in the brackets of a chain."""
        while True:
            if type(node) is Select:
                node = node.operand
            elif type(node) is Call and node.function in _STEPS:
                if type(node.args[1]) is not Literal:
                    self.visit(node.args[1])
                node = node.args[0]
            else:
                return

    def _comprehension(self, node: Comprehension) -> None:
        if node.is_bind:
            alias = self._path(node.init)
            if alias is None:
                self.visit(node.init)
            self._scoped(node.accu, alias, node.result)
            return
        self.visit(node.range)
        self.visit(node.init)
        for name in (node.var, node.var2, node.accu):
            self._aliases.setdefault(name, []).append(None)
        for part in (node.cond, node.step, node.result):
            self.visit(part)
        for name in (node.var, node.var2, node.accu):
            self._aliases[name].pop()

    def _scoped(self, name: str, alias: _Path | None, node: Node) -> None:
        self._aliases.setdefault(name, []).append(alias)
        self.visit(node)
        self._aliases[name].pop()

    def _path(self, node: Node) -> _Path | None:
        """Return the path from `device` to the value of a chain, or None if the node is not such a chain."""
        steps: list[str | None] = []
        while True:
            if type(node) is Select and not node.declared:
                steps.append(node.field)
                node = node.operand
            elif type(node) is Call and node.function in _STEPS:
                key = node.args[1]
                steps.append(key.value if type(key) is Literal and type(key.value) is str else None)
                node = node.args[0]
            else:
                break
        root = self._root(node)
        if root is None:
            return None
        path = list(root)
        for step in reversed(steps):
            if step is None:
                break  # the key is unknown, so the whole map counts as read
            path.append(step)
        return tuple(path)

    def _root(self, node: Node) -> _Path | None:
        if type(node) is not Ident or node.declared:
            return None
        local = self._aliases.get(node.name)
        if local:
            return local[-1]
        return ("device",) if node.name == "device" else None

    def _record(self, path: _Path, *, guarded: bool) -> None:
        if len(path) == 1:
            self.reads |= {Read("driver"), Read("attributes"), Read("capacity"), Read("allowMultipleAllocations")}
            return
        field = path[1]
        if field not in _MAPS:
            self.reads.add(Read(field))
            return
        domain = path[2] if len(path) > 2 else None
        name = path[3] if len(path) > 3 else None
        # A test for a domain reads the whole domain, because an empty domain and an absent one differ.
        read = Read(field, domain, name)
        self.reads.add(read)
        if guarded and name is not None:
            self.guarded.add(read)


def _is_guard(node: Node) -> bool:
    """Return whether an access can't fail because of a missing name."""
    if type(node) is Select:
        return node.test
    return type(node) is Call and node.function in {"_[?_]", "_?._"}


# Names that do not exist, and what was probably meant.

_UNDECLARED = re.compile(r"undeclared reference to '([^']+)'")
_UNDEFINED = re.compile(r"undefined field '([^']+)'")
_MAX = 3
_DRIVERS = frozenset(vendor.driver for vendor in VENDORS)


@dataclass(frozen=True, slots=True)
class UnknownName:
    """A name that does not exist. `kind` is attribute, capacity, domain, field, function or variable.

    `instead` is an expression that reads the name where devices have it: as a capacity instead of an attribute, or the
    other way round. `since` is the version since which a driver of ours publishes the name, on other devices.
    """

    kind: str
    name: str
    suggestions: tuple[str, ...]
    instead: str = ""
    since: str = ""

    @property
    def is_published(self) -> bool:
        """Whether a driver of ours has the name, though none of these devices."""
        return bool(self.since) or (self.kind == "domain" and self.name in _DRIVERS)

    @property
    def sentence(self) -> str:
        """A sentence naming what does not exist and what was probably meant."""
        if self.instead:
            other = "a capacity" if self.kind == "attribute" else "an attribute"
            return f"no device has the {self.kind} {self.name}: it is {other}, {self.instead}"
        if self.since:
            return f"{self.name} is published since {self.since}, but not on these devices"
        if self.is_published:
            return f"none of these devices is of the driver {self.name}"
        meant = f"; did you mean {' or '.join(self.suggestions)}?" if self.suggestions else ""
        if self.kind in {"attribute", "capacity", "domain"}:
            return f"no device has the {self.kind} {self.name}{meant}"
        return f"there is no {self.kind} {self.name}{meant}"


def unknown_names(reads: ReadSet, views: Iterable[DeviceView]) -> list[UnknownName]:
    """List the attributes, capacities and domains that an expression reads but no device has."""
    held: dict[str, dict[str, set[str]]] = {"attributes": {}, "capacity": {}}
    for view in views:
        for field, domains in (("attributes", view.attributes), ("capacity", view.capacity)):
            for domain, names in domains.items():
                held[field].setdefault(domain, set()).update(names)
    found: dict[tuple[str, str], UnknownName] = {}
    for read in sorted(reads.reads, key=repr):
        known = held.get(read.field)
        if known is None or read.domain is None:
            continue
        if read.domain not in known:
            near = _close(read.domain, {*held["attributes"], *held["capacity"]}) if read.domain not in _DRIVERS else ()
            unknown = UnknownName("domain", read.domain, near)
        elif read.name is not None and read.name not in known[read.domain]:
            kind = "attribute" if read.field == "attributes" else "capacity"
            other = "capacity" if read.field == "attributes" else "attributes"
            if read.name in held[other].get(read.domain, ()):
                instead = f'device.{other}["{read.domain}"].{read.name}'
                unknown = UnknownName(kind, f"{read.domain}/{read.name}", (instead,), instead)
            elif since := _published_since(read.domain, read.name):
                unknown = UnknownName(kind, f"{read.domain}/{read.name}", (), since=since)
            else:
                unknown = UnknownName(kind, f"{read.domain}/{read.name}", _elsewhere(read.domain, read.name, held))
        else:
            continue
        found[unknown.kind, unknown.name] = unknown
    return list(found.values())


def _published_since(domain: str, name: str) -> str:
    """Return the version since which a driver of ours publishes a name, or "" if none does."""
    from dra_driver.hardware.vendors import load_vendor  # noqa: PLC0415  (rarely needed)

    for vendor in VENDORS:
        for row in load_vendor(vendor.name).rows:
            if row.name in {name if domain == vendor.driver else "", f"{domain}/{name}"}:
                return row.since
    return ""


def _elsewhere(domain: str, name: str, held: dict[str, dict[str, set[str]]]) -> tuple[str, ...]:
    """Suggest close names in the same domain first, then the same name in other domains."""
    near = {one for domains in held.values() for one in domains.get(domain, ())}
    close = [f"{domain}/{one}" for one in _close(name, near)]
    same = [f"{other}/{name}" for domains in held.values() for other, names in domains.items() if name in names]
    return tuple(dict.fromkeys([*close, *same]))[:_MAX]


def suggest(error: SelectorCompileError, declarations: Declarations) -> list[UnknownName]:
    """List the names that a compile error calls undeclared or undefined, with close names that exist."""
    found: list[UnknownName] = []
    for name in dict.fromkeys(_UNDECLARED.findall(error.text)):
        functions = {*declarations.function_names, *(macro[0] for macro in declarations.macros)}
        kind = "function" if re.search(rf"{re.escape(name)}\s*\(", error.text) else "variable"
        known = functions if kind == "function" else {"device", *declarations.identifiers}
        found.append(UnknownName(kind, name, _close(name, known)))
    fields = set(declarations.device_fields)
    found += [
        UnknownName("field", name, _close(name, fields)) for name in dict.fromkeys(_UNDEFINED.findall(error.text))
    ]
    return found


def _close(name: str, known: set[str]) -> tuple[str, ...]:
    by_lower = {one.lower(): one for one in sorted(known)}
    return tuple([by_lower[match] for match in get_close_matches(name.lower(), list(by_lower), n=_MAX, cutoff=0.6)])
