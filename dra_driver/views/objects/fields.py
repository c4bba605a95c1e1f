"""The fields of pods, nodes and workloads (objects from which pods are made), with their types.

In: an object of one of these kinds. Out: its faults, as an API server finds them under strict validation: fields that
the API does not have, and values of the wrong type. The table is data; a field that only a newer version has is
accepted.
Source: Kubernetes' OpenAPI of 1.35 (core/v1, apps/v1, batch/v1), with the fields that 1.36 and 1.37 add.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

Step = str | int
_SCALARS: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "str": ("a text", (str,)),
    "int": ("a whole number", (int,)),
    "num": ("a number", (int, float)),
    "bool": ("true or false", (bool,)),
    "quantity": ("a quantity", (str, int, float)),
    "intstr": ("a whole number or a text", (int, str)),
}


@dataclass(frozen=True, slots=True)
class FieldFault:
    """One fault: the path, the expected type ("" for an unknown field), and the fields that are known at that place."""

    path: tuple[Step, ...]
    wanted: str = ""
    known: tuple[str, ...] = ()


def has_fields(kind: str, api_version: object) -> bool:
    """Return whether the fields of a kind are known.

    A kind with the same name in another API group is a different one: Volcano, for example, has its own Job. The groups
    of the kinds in the table have no dot in their names.
    """
    group = str(api_version or "").rpartition("/")[0]
    return kind in _KINDS and "." not in group and kind in _table()


def field_faults(kind: str, wire: Any) -> Iterator[FieldFault]:
    """Yield the faults of an object of a known kind."""
    yield from _faults(wire, kind, ())


_KINDS = frozenset(
    "Pod Node PodTemplate ReplicationController Deployment StatefulSet DaemonSet ReplicaSet Job CronJob".split()  # noqa: SIM905
)


@cache
def _table() -> Mapping[str, Mapping[str, str]]:
    text = resources.files("dra_driver.views.objects").joinpath("tables", "fields.json").read_text(encoding="utf-8")
    table: Mapping[str, Mapping[str, str]] = json.loads(text)
    return table


def _faults(value: Any, name: str, path: tuple[Step, ...]) -> Iterator[FieldFault]:
    if value is None or name == "any":
        return  # null means the same as an absent field
    if name.startswith("[]"):
        yield from _of_list(value, name[2:], path)
    elif name.startswith("{}"):
        yield from _of_map(value, name[2:], path)
    elif name in _SCALARS:
        wanted, types = _SCALARS[name]
        if type(value) not in types:
            yield FieldFault(path, wanted)
    elif not isinstance(value, dict):
        yield FieldFault(path, "a mapping")
    else:
        fields = _table()[name]
        for key, inner in value.items():
            if key not in fields:
                yield FieldFault((*path, str(key)), known=tuple(fields))
            else:
                yield from _faults(inner, fields[key], (*path, key))


def _of_list(value: Any, name: str, path: tuple[Step, ...]) -> Iterator[FieldFault]:
    if not isinstance(value, list):
        yield FieldFault(path, "a list")
        return
    for number, entry in enumerate(value):
        yield from _faults(entry, name, (*path, number))


def _of_map(value: Any, name: str, path: tuple[Step, ...]) -> Iterator[FieldFault]:
    if not isinstance(value, dict):
        yield FieldFault(path, "a mapping")
        return
    for key, inner in value.items():
        yield from _faults(inner, name, (*path, str(key)))
