"""API versions: objects of resource.k8s.io in the form of v1, whatever version they were written for.

In: an object. Out: the same object in v1, converted as the API server converts it; or an error for a version that no
supported server serves, or for a field in the place where an older version had it.
Source: Kubernetes resource/v1beta1 conversion (a request's fields move under `exactly`, a device's leave `basic`);
v1beta2 has v1's shape; v1alpha2 and v1alpha3 objects are not served since 1.32 and 1.33.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Any

from dra_driver.base.errors import InputError, UsageError
from dra_driver.base.wire import Wire

_GROUP = "resource.k8s.io/"
_V1, _BASIC = "v1", "v1beta1"
_SAME_SHAPE = frozenset({_V1, "v1beta2"})
_EXACT = frozenset(
    {"deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity"}
)
_KINDS = frozenset({"ResourceClaim", "ResourceClaimTemplate", "ResourceSlice", "DeviceClass"})
_LISTED = ("v1", "v1beta2", "v1beta1")


def as_v1(wire: Wire, at: str) -> Wire:
    """Return an object in v1. Raises: InputError("input.api-version", "input.object")."""
    kind, version = wire.get("kind"), wire.get("apiVersion")
    if kind not in _KINDS or version is None:
        return wire
    if not isinstance(version, str) or not version.startswith(_GROUP):
        raise InputError("api-version", f"{at}: apiVersion {version!r} is not {_GROUP}v1")
    short = version.removeprefix(_GROUP)
    if short == _BASIC:
        return {**_converted(wire), "apiVersion": f"{_GROUP}{_V1}"}
    if short not in _SAME_SHAPE:
        raise InputError(
            "api-version",
            f"{at}: apiVersion {version} is not served by Kubernetes 1.34 and newer",
            hint=f"write it as {_GROUP}v1; {', '.join(_LISTED)} are read here",
        )
    _refuse_old_shapes(wire, at)
    return wire


def _refuse_old_shapes(wire: Wire, at: str) -> None:
    """Refuse fields in the places where v1beta1 had them, because in v1 a server drops them."""
    for number, request in enumerate(_requests(wire)):
        old = sorted(_EXACT & request.keys()) if isinstance(request, dict) else []
        if old:
            path = f"{_path_of_requests(wire)}[{number}].{old[0]}"
            raise InputError(
                "object", f"{at}: {path}: in v1 this field is under `exactly:`", hint="v1beta1 had it beside `name:`"
            )
    for number, device in enumerate(_devices(wire)):
        if isinstance(device, dict) and "basic" in device:
            raise InputError("object", f"{at}: spec.devices[{number}].basic: in v1 its fields are beside `name:`")


def _converted(wire: Wire) -> Wire:
    """Return an object of v1beta1 in the shape of v1."""
    made = dict(wire)
    spec = wire.get("spec")
    if not isinstance(spec, dict):
        return made
    if wire["kind"] == "ResourceSlice":
        devices = {"devices": [_flat(one) for one in _list(spec["devices"])]} if "devices" in spec else {}
        made["spec"] = {**spec, **devices}
    elif wire["kind"] == "ResourceClaim":
        made["spec"] = _claim_spec(spec)
    elif wire["kind"] == "ResourceClaimTemplate" and isinstance(spec.get("spec"), dict):
        made["spec"] = {**spec, "spec": _claim_spec(spec["spec"])}
    return made


def _claim_spec(spec: Wire) -> Wire:
    devices = spec.get("devices")
    if not isinstance(devices, dict) or "requests" not in devices:
        return spec
    requests = [_exactly(one) for one in _list(devices["requests"])]
    return {**spec, "devices": {**devices, "requests": requests}}


def _exactly(request: object) -> object:
    if not isinstance(request, dict):
        return request
    inner = {name: value for name, value in request.items() if name in _EXACT}
    rest = {name: value for name, value in request.items() if name not in _EXACT}
    return {**rest, "exactly": inner} if inner else rest


def _flat(device: object) -> object:
    if not isinstance(device, dict) or not isinstance(device.get("basic"), dict):
        return device
    return {**{name: value for name, value in device.items() if name != "basic"}, **device["basic"]}


def _requests(wire: Wire) -> Iterator[object]:
    spec = wire.get("spec")
    if wire["kind"] == "ResourceClaimTemplate":
        spec = spec.get("spec") if isinstance(spec, dict) else None
    if wire["kind"] in {"ResourceClaim", "ResourceClaimTemplate"} and isinstance(spec, dict):
        devices = spec.get("devices")
        yield from _list(devices.get("requests")) if isinstance(devices, dict) else ()


def _path_of_requests(wire: Wire) -> str:
    return "spec.devices.requests" if wire["kind"] == "ResourceClaim" else "spec.spec.devices.requests"


def _devices(wire: Wire) -> list[object]:
    spec = wire.get("spec")
    return _list(spec.get("devices")) if wire["kind"] == "ResourceSlice" and isinstance(spec, dict) else []


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


# The fields of pods, nodes and workloads (objects from which pods are made), with their types.

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
    return kind in _KUBERNETES_KINDS and "." not in group and kind in _table()


def field_faults(kind: str, wire: Any) -> Iterator[FieldFault]:
    """Yield the faults of an object of a known kind."""
    yield from _faults(wire, kind, ())


_KUBERNETES_KINDS = frozenset(
    "Pod Node PodTemplate ReplicationController Deployment StatefulSet DaemonSet ReplicaSet Job CronJob".split()  # noqa: SIM905
)


@cache
def _table() -> Mapping[str, Mapping[str, str]]:
    text = resources.files("dra_driver.tools.world").joinpath("tables", "fields.json").read_text(encoding="utf-8")
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


# Texts for counts and names, used in the tables, sentences and documents of all views.


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, in the singular or plural.

    >>> plural(1, "device"), plural(2, "match")
    ('1 device', '2 matches')
    """
    return f"{number(count)} {noun}{'' if count == 1 else 'es' if noun.endswith(('ch', 's')) else 's'}"


def counted(counts: Iterable[tuple[str, int]]) -> str:
    """Return how many there are of each name.

    >>> counted([("1g.10gb", 7), ("7g.80gb", 1)]).encode("ascii", "replace").decode()
    '7?1g.10gb, 1?7g.80gb'
    """
    return ", ".join(f"{count:,}\u00d7{name}" for name, count in counts)


def number(value: int) -> str:
    """Return a number with thousands separators, or a very large one as a power of ten.

    >>> number(12345), number(10**12)
    ('12,345', '1.0e+12')
    """
    return f"{value:,}" if abs(value) < 10**9 else f"{float(value):.1e}"


def folded(names: Sequence[str]) -> str:
    """Return a short name for several similar nodes.

    >>> folded(["a", "b"]), folded(["a", "b", "c", "d"])
    ('a, b', 'a and 3 nodes like a')
    """
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1:,} nodes like {names[0]}"


def folded_words(names: Sequence[str], more: str) -> str:
    """Return names joined by commas; if there are many, only the first three and how many `more` there are.

    >>> folded_words(["a", "b"], "pods"), folded_words(["a", "b", "c", "d", "e"], "more pods")
    ('a, b', 'a, b, c and 2 more pods')
    """
    if len(names) <= 4:
        return ", ".join(names)
    return f"{', '.join(names[:3])} and {len(names) - 3:,} {more}"


def nearest(name: str, known: Collection[str]) -> str:
    """Return a hint about an unknown name: the name that was probably meant, or else all known names.

    >>> nearest("trian", ["train", "serve"]), nearest("x", ["train", "serve"])
    ('did you mean train?', 'known: train, serve')
    """
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"


# Label selectors as kubectl's -l accepts them: equality, inequality, existence and sets.

_KEY = r"[A-Za-z0-9](?:[A-Za-z0-9_./-]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?)?"
_SPLIT = re.compile(r",(?![^()]*\))")
_COMPARED = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})")
_SET = re.compile(rf"({_KEY})\s+(in|notin)\s+\(\s*([^()]*?)\s*\)")
_EXISTS = re.compile(rf"(!?)\s*({_KEY})")
_MAX = 4096  # characters of a selector

Labels = dict[str, str]


def label_selector(text: str) -> Callable[[Wire], bool]:
    """Return a predicate that is true for objects with the labels that a selector requires; for all if it is "".

    Raises: UsageError.
    """
    if len(text) > _MAX:
        raise UsageError("labels", f"-l is longer than {_MAX} characters")
    tests = [_requirement(part.strip()) for part in _SPLIT.split(text)] if text.strip() else []

    def matches(wire: Wire) -> bool:
        labels = wire["metadata"].get("labels") or {}
        return all(test(labels) for test in tests)

    return matches


def _requirement(text: str) -> Callable[[Labels], bool]:
    if found := _COMPARED.fullmatch(text):
        key, sign, value = found.groups()
        return (lambda labels: labels.get(key) != value) if sign == "!=" else (lambda labels: labels.get(key) == value)
    if found := _SET.fullmatch(text):
        key, word, listed = found.groups()
        values = {one.strip() for one in listed.split(",")}
        if all(re.fullmatch(_VALUE, one) for one in values):
            return lambda labels: (key in labels and labels[key] in values) is (word == "in")
    if found := _EXISTS.fullmatch(text):
        is_absent, key = found.groups()
        return lambda labels: (key in labels) is not bool(is_absent)
    hint = "such as app=train,tier in (a, b),!old"
    raise UsageError("labels", f"-l {text[:80]!r} is not a requirement on a label", hint=hint)


# Pod references: the names by which a pod and its containers refer to claims, as the API server checks them.

_WAYS = ("resourceClaimName", "resourceClaimTemplateName")


def bad_reference(pod: Wire, title: str) -> InputError | None:
    """Return the error for the first bad reference of a pod, which `title` names; None if there is none."""
    for path, cause in _wrong_references(pod.get("spec") or {}):
        return InputError("object", f"{title}: {path}: {cause}", hint="the API server refuses such an object")
    return None


def _wrong_references(spec: Wire) -> Iterator[tuple[str, str]]:
    names: list[str] = []
    for number, one in enumerate(spec.get("resourceClaims") or ()):
        path = f"spec.resourceClaims[{number}]"
        if one["name"] in names:
            yield f"{path}.name", f'Duplicate value: "{one["name"]}"'
        names.append(one["name"])
        given = sum(bool(one.get(way)) for way in _WAYS)
        if given != 1:
            yield path, f"{'at most' if given else 'must specify'} one of `{_WAYS[0]}`, `{_WAYS[1]}`"
    known = f": {', '.join(sorted(names))}" if names else ", which is empty"
    for group in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(group) or ()):
            for place, used in enumerate(_claims(container)):
                if used["name"] not in names:
                    yield (
                        f"spec.{group}[{number}].resources.claims[{place}]",
                        f'Not found: "{used["name"]}": must be one of the names in spec.resourceClaims{known}',
                    )


def _claims(container: Wire) -> list[Any]:
    return (container.get("resources") or {}).get("claims") or []
