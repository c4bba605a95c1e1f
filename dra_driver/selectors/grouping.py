"""Many devices, few verdicts: devices grouped by what an expression reads.

In: devices as wire dicts with their drivers, and a read-set. Out: groups, each with one converted representative. A
selector is evaluated once per group. Only representatives are converted, so memory grows with the number of groups,
plus one number per device that names its group.

Never group by all attributes: UUIDs and bus addresses would put each device into a group of its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra_driver.base.quantity import Quantity, QuantityError
from dra_driver.base.versions import Semver, SemverError
from dra_driver.selectors.engine import SelectorRuntimeError
from dra_driver.selectors.evaluate.program import DeviceView, prepare_device
from dra_driver.selectors.functions.formats import render
from dra_driver.selectors.kubernetes import KubernetesSelector
from dra_driver.selectors.parse.tree import Call, Ident, Literal, Node, Select, terms_below
from dra_driver.selectors.reads import Read, ReadSet
from dra_driver.selectors.values.values import CelError, CelQuantity, check_cancelled

SelectorVerdict = bool | SelectorRuntimeError
_KeyPart = Callable[[Mapping[str, Any], str], Any]
_NamedRead = tuple[str, str | None]  # the full name, and the one without domain if it may be left out

_PLAIN = {"int": int, "bool": bool, "string": str}
_MAX_KNOWN = 4096
_MOST_SHOWN = 160  # characters of a clause in the reason for a miss
_NOTHING: Mapping[str, Any] = {}


class DeviceGroups:
    """Grouped devices. `index[i]` is the group of device i, `views[g]` the representative of group g."""

    __slots__ = ("index", "read_set", "views")

    def __init__(self, devices: Iterable[tuple[Mapping[str, Any], str]], read_set: ReadSet) -> None:
        self.read_set = read_set
        self.index = array("I")
        self.views: list[DeviceView] = []
        self._build(devices)

    def _build(self, devices: Iterable[tuple[Mapping[str, Any], str]]) -> None:
        makers: dict[str, Callable[[Mapping[str, Any]], Any]] = {}
        known: dict[Any, int] = {}
        append, views = self.index.append, self.views
        for device, driver in devices:
            make = makers.get(driver)
            if make is None:
                make = makers[driver] = key_maker(self.read_set, driver)
            key = make(device)
            group = known.get(key)
            if group is None:
                group = known[key] = len(views)
                views.append(prepare_device(device, driver))
            append(group)

    def verdicts(self, selector: KubernetesSelector) -> list[SelectorVerdict]:
        """Evaluate a selector once per group. Where the evaluation fails, the error stands in place of the verdict.

        Raises:
            ValueError: The selector reads something by which the devices were not grouped.
        """
        if not self.read_set.covers(selector.read_set):
            raise ValueError("the selector reads attributes that the devices were not grouped by")
        return [_verdict(selector, view) for view in self.views]

    def matches(self, selector: KubernetesSelector) -> list[SelectorVerdict]:
        """Return the verdict on each device, in the order in which the devices were given."""
        verdicts = self.verdicts(selector)
        return [verdicts[group] for group in self.index]

    def counts(self) -> list[int]:
        """Count the devices of each group."""
        found = [0] * len(self.views)
        for group in self.index:
            found[group] += 1
        return found


def _verdict(selector: KubernetesSelector, view: DeviceView) -> SelectorVerdict:
    try:
        return selector.matches_view(view)
    except SelectorRuntimeError as error:
        return error


def key_maker(read_set: ReadSet, driver: str) -> Callable[[Mapping[str, Any]], Any]:
    """Make the function that returns the group key of a device of one driver."""
    attributes, capacity, parts = _what_is_read(read_set, driver)

    def key(device: Mapping[str, Any]) -> Any:
        held = device.get("attributes") or _NOTHING
        amounts = device.get("capacity") or _NOTHING
        made: list[Any] = [driver, None]
        if not _is_sound(held) or not _is_measured(amounts):
            view = prepare_device(device, driver)
            if view.problem is not None:
                return driver, view.problem
            made[1] = view.list_problem, view.list_fault
        for full, short in attributes:
            value = held.get(full)
            if value is None and short is not None:
                value = held.get(short)
            made.append(_frozen(value))
        for full, short in capacity:
            value = amounts.get(full)
            if value is None and short is not None:
                value = amounts.get(short)
            made.append(_frozen(value))
        if parts:
            made.extend([part(device, driver) for part in parts])
        return tuple(made)

    return key


def _what_is_read(read_set: ReadSet, driver: str) -> tuple[list[_NamedRead], list[_NamedRead], list[_KeyPart]]:
    """Return the attributes and the capacities that are read by name, and the key's parts for everything else."""
    single: dict[str, list[_NamedRead]] = {"attributes": [], "capacity": []}
    parts: list[_KeyPart] = []
    for read in sorted(read_set.reads, key=repr):
        if read.name is not None and read.domain is not None:
            short = read.name if read.domain == driver else None
            single[read.field].append((f"{read.domain}/{read.name}", short))
        elif read.field in single:
            parts.append(_whole(read))
        elif read.field == "allowMultipleAllocations":
            parts.append(lambda device, _: bool(device.get("allowMultipleAllocations")))
    return single["attributes"], single["capacity"], parts


def _whole(read: Read) -> _KeyPart:
    """Make the part of the key that covers a whole map or a whole domain."""
    field, domain = read.field, read.domain

    def part(device: Mapping[str, Any], driver: str) -> Any:
        held = device.get(field) or {}
        chosen = []
        for name, value in held.items():
            before, slash, _ = name.partition("/")
            if domain is None or (before if slash else driver) == domain:
                chosen.append((name, _frozen(value)))
        chosen.sort(key=lambda one: one[0])
        return tuple(chosen)

    return part


def _frozen(value: Any) -> Any:
    """Return a hashable value that stands for a wire value and distinguishes types (true is not 1)."""
    if value is None:
        return None
    if isinstance(value, dict) and len(value) == 1:
        for kind, inner in value.items():
            return (kind, inner) if type(inner) is not list else (kind, repr(inner))
    return repr(value)


class _ValidTexts:
    """Texts that were found to be valid versions and quantities, in memos of bounded size."""

    versions: set[str] = set()  # noqa: RUF012
    quantities: set[str] = set()  # noqa: RUF012


def _is_sound(attributes: Mapping[str, Any]) -> bool:
    """Return whether all attributes are plain and valid. A device that fails this quick check is converted instead."""
    good = _ValidTexts.versions
    for attribute in attributes.values():
        if type(attribute) is not dict or len(attribute) != 1:
            return False
        for kind, value in attribute.items():
            if kind == "version":
                if type(value) is str and value in good:
                    continue
                if not _is_version(value):
                    return False
            elif type(value) is not _PLAIN.get(kind):
                return False
    return True


def _is_version(text: Any) -> bool:
    if type(text) is not str:
        return False
    try:
        Semver.parse(text)
    except SemverError:
        return False
    _remember(_ValidTexts.versions, text)
    return True


def _is_measured(amounts: Mapping[str, Any]) -> bool:
    """Return whether all capacities are valid quantities. A device that fails this quick check is converted instead."""
    good = _ValidTexts.quantities
    for amount in amounts.values():
        value = amount.get("value") if type(amount) is dict else None
        if type(value) is not str:
            return False
        if value not in good:
            try:
                Quantity.parse(value)
            except QuantityError:
                return False
            _remember(good, value)
    return True


def _remember(memo: set[str], text: str) -> None:
    if len(memo) >= _MAX_KNOWN:
        memo.clear()
    memo.add(text)


# Near misses: the devices that fail only one clause of a selector, and why.

_NEGATED = {"_==_": "!=", "_!=_": "==", "_<_": ">=", "_<=_": ">", "_>_": "<=", "_>=_": "<"}
_CONJUNCTION = frozenset({"_&&_"})
_METHODS = {"isGreaterThan": "<=", "isLessThan": ">="}


@dataclass(frozen=True, slots=True)
class NearMiss:
    """Devices that fail one clause only. `reason` is short, such as "memory: 79Gi < 80Gi"."""

    clause: str
    reason: str
    devices: tuple[int, ...]


def nearest_misses(selector: KubernetesSelector, views: Sequence[DeviceView]) -> list[NearMiss]:
    """Find each clause that is the only one to exclude some devices; the clause with the most devices comes first."""
    terms = terms_below(selector.program.root, _CONJUNCTION)
    clauses = [term for term in terms if hasattr(term, "start")]  # nodes that macros made have no text
    found: dict[tuple[str, str], list[int]] = {}
    for position, view in enumerate(views):
        check_cancelled()
        if not selector.can_read(view):
            continue
        trace = selector.trace(view)
        failing = [clause for clause in clauses if trace.get(clause) is not True]
        if len(failing) == 1:
            clause = failing[0]
            text = selector.expression[clause.start : clause.end]
            found.setdefault((text, _reason(clause, trace, text)), []).append(position)
    misses = [NearMiss(text, reason, tuple(devices)) for (text, reason), devices in found.items()]
    return sorted(misses, key=lambda miss: (-len(miss.devices), miss.clause))


def _reason(clause: Node, trace: dict[Node, Any], text: str) -> str:
    """Describe in a few words why a clause does not hold."""
    value = trace.get(clause)
    if isinstance(value, CelError):
        missing = value.text.removeprefix("no such key: ")
        return f"{missing}: missing" if missing != value.text else f"{_brief(text)}: {_brief(value.text)}"
    if type(clause) is Select and clause.test:
        return f"{clause.field}: missing"
    if type(clause) is Call:
        compared = _comparison(clause, trace) or _value_test(clause, trace)
        if compared is not None:
            return compared
    name = _name(clause)
    return f"{name or _brief(text)}: {render(value)}"


def _brief(text: str) -> str:
    """Return a text on one line; of a long one, its beginning and its end."""
    line = " ".join(text.split())
    return line if len(line) <= _MOST_SHOWN else f"{line[: _MOST_SHOWN // 2]} … {line[-_MOST_SHOWN // 4 :]}"


def _comparison(clause: Call, trace: dict[Node, Any]) -> str | None:
    """Describe a failed comparison as "name: actual relation wanted"."""
    if clause.function in _METHODS and clause.target is not None:
        return _described(clause.target, _METHODS[clause.function], clause.args[0], trace)
    if clause.function == "@in":
        return _described(clause.args[0], "not in", clause.args[1], trace)
    relation = _NEGATED.get(clause.function)
    if relation is None:
        return None
    left, right = clause.args
    if type(left) is Call and left.function == "compareTo" and type(right) is Literal and right.value == 0:
        assert left.target is not None  # noqa: S101  (compareTo is a method)
        return _described(left.target, relation, left.args[0], trace)
    return _described(left, relation, right, trace)


def _value_test(clause: Call, trace: dict[Node, Any]) -> str | None:
    """Describe a failed test of one value: "name: actual fails startsWith("H")"."""
    name = _name(clause.target) if clause.target is not None else None
    if name is None or clause.target not in trace or any(arg not in trace for arg in clause.args):
        return None
    wanted = ", ".join([render(trace[arg]) for arg in clause.args])
    return f"{name}: {render(trace[clause.target])} fails {clause.function}({wanted})"


def _described(subject: Node, relation: str, wanted: Node, trace: dict[Node, Any]) -> str | None:
    name = _name(subject)
    if name is None or subject not in trace or wanted not in trace:
        return None
    return f"{name}: {_text_of_value(trace[subject])} {relation} {_text_of_value(trace[wanted])}"


def _text_of_value(value: Any) -> str:
    return value.number.readable if type(value) is CelQuantity else render(value)


def _name(node: Node) -> str | None:
    """Find the last name of an access chain, looking through methods and fallbacks."""
    while True:
        if type(node) is Select:
            return node.field
        if type(node) is Call and node.function in {"_[_]", "_[?_]", "_?._"}:
            key = node.args[1]
            return key.value if type(key) is Literal and type(key.value) is str else None
        if type(node) is Call and node.target is not None:
            node = node.target
        else:
            return node.name if type(node) is Ident else None
