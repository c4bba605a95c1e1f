"""Names that do not exist, and what was probably meant.

In: a selector or a compile error, and the given devices. Out: each unknown name with existing names that are close
to it. The guess uses spelling alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from dra_driver.selectors.checking.declarations import Declarations
from dra_driver.selectors.engine import SelectorCompileError
from dra_driver.selectors.evaluation.device_view import DeviceView
from dra_driver.selectors.readset import ReadSet

_UNDECLARED = re.compile(r"undeclared reference to '([^']+)'")
_UNDEFINED = re.compile(r"undefined field '([^']+)'")
_MAX = 3


@dataclass(frozen=True, slots=True)
class UnknownName:
    """A name that does not exist. `kind` is attribute, capacity, domain, field, function or variable.

    `instead` is an expression that reads the name where devices have it: as a capacity instead of an attribute, or the
    other way round.
    """

    kind: str
    name: str
    suggestions: tuple[str, ...]
    instead: str = ""

    @property
    def sentence(self) -> str:
        """A sentence naming what does not exist and what was probably meant."""
        if self.instead:
            other = "a capacity" if self.kind == "attribute" else "an attribute"
            return f"no device has the {self.kind} {self.name}: it is {other}, {self.instead}"
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
            unknown = UnknownName("domain", read.domain, _close(read.domain, {*held["attributes"], *held["capacity"]}))
        elif read.name is not None and read.name not in known[read.domain]:
            kind = "attribute" if read.field == "attributes" else "capacity"
            other = "capacity" if read.field == "attributes" else "attributes"
            if read.name in held[other].get(read.domain, ()):
                instead = f'device.{other}["{read.domain}"].{read.name}'
                unknown = UnknownName(kind, f"{read.domain}/{read.name}", (instead,), instead)
            else:
                unknown = UnknownName(kind, f"{read.domain}/{read.name}", _elsewhere(read.domain, read.name, held))
        else:
            continue
        found[unknown.kind, unknown.name] = unknown
    return list(found.values())


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
    return tuple([by_lower[one] for one in get_close_matches(name.lower(), list(by_lower), n=_MAX, cutoff=0.6)])
