"""Worlds about attributes that a request derives, and about devices whose driver skips calls of the kubelet."""

from __future__ import annotations

from itertools import product

from cluster.oracle.worlds import DRIVER
from cluster.oracle.written.parts import Wire, apart, make_claim, make_device, world

_SIZES = ("40Gi", "80Gi", "40Gi", "141Gi")
_NAME = f"{DRIVER}/kind"
_OWN = f'device.attributes["{DRIVER}"]'
_MEMORY = f'device.capacity["{DRIVER}"].memory'
_EXPRESSIONS = {
    "int": f"{_OWN}.slot / 2",
    "string": f'{_OWN}.model.split("-")[0]',
    "bool": f'{_MEMORY}.isGreaterThan(quantity("50Gi"))',
    "version": f"{_OWN}.driver",
    "new version": f'semver("1.0." + string({_OWN}.slot % 2))',
    "size": f"{_MEMORY}.asInteger()",
    "list": f"[{_OWN}.slot % 2, {_OWN}.slot % 3]",
    "empty list": "[]",
    "mixed list": f"[dyn({_OWN}.slot), dyn({_OWN}.model)]",
    "list of floats": "[dyn(1.5)]",
    "type": f"dyn(type({_OWN}.slot))",
    "optional": f"dyn({_OWN}.?model)",
    "absent": f"dyn({_OWN}.?nothing)",
    "unsigned": "dyn(1u)",
    "null": "dyn(null)",
    "missing key": f"{_OWN}.nothing",
    "on some": f"{_OWN}.slot == 2 ? {_OWN}.nothing : 1",
    "float": "1.5",
    "map": '{"a": 1}',
    "quantity": _MEMORY,
    "no CEL": "1 +",
    "driver": "device.driver",
    "constant": "1",
}
_WISHES: tuple[list[Wire], ...] = (
    [{"count": 2}], [{}, {}], [{"count": 3}], [{"allocationMode": "All", "count": 0}]
)  # fmt: skip


def derived_worlds() -> dict[str, Wire]:
    """Return worlds with requests that derive what constraints compare, with the gates on and off."""
    found: dict[str, Wire] = {}
    for (name, expression), wishes in product(_EXPRESSIONS.items(), _WISHES):
        for kind, lists in product(("matchAttribute", "distinctAttribute"), (True, False)):
            text = f"derived {name}, {kind} {wishes}{' as lists' if lists else ''}"
            found[text] = _deriving(expression, kind, wishes, {"ListTypeAttributes": lists})
    for on in (True, False):
        found[f"derived without a constraint, gate {on}"] = _deriving("1 +", "", [{}], {"DerivedAttributes": on})
        found[f"derived by one of two, gate {on}"] = _by_one_of_two({"DerivedAttributes": on})
    alternatives = world(*_devices(), claims=[_with_alternatives()], features={"DerivedAttributes": True})
    return found | {"derived by one of two alternatives": alternatives}


def skipping_worlds() -> dict[str, Wire]:
    """Return worlds with devices whose driver skips calls of the kubelet, on nodes that can do without and others."""
    feature = "DRAOptionalNodeOperations"
    found: dict[str, Wire] = {}
    for declared, on, other in product(([], [feature], ["Other"]), (True, False), (True, False)):
        for wish, skipped in product(({}, {"count": 2}, {"allocationMode": "All", "count": 0}), (["*"], ["Prepare"])):
            made = world(*_devices(), claims=[make_claim(wish)], features={"OptionalNodeOperations": on})
            made["features"] |= {"CompatibilityGroups": other}
            made["nodes"][0]["status"] = {"declaredFeatures": declared}
            made["slices"] = apart(made["slices"][0], {"devices": _devices("more")})
            made["slices"][0]["spec"] |= {"skipNodeOperations": skipped}
            found[f"skipping {skipped} on {declared}, gate {on}, {other}, {wish}"] = made
    return found


def _devices(prefix: str = "gpu") -> list[Wire]:
    return [
        make_device(
            f"{prefix}-{slot}",
            shared=False,
            attributes={
                "slot": {"int": slot},
                "model": {"string": f"{'ab'[slot % 2]}-{slot}"},
                "driver": {"version": "1.2.3"},
                "kind": {"int": slot // 2},
            },
            capacity={"memory": {"value": size}},
        )
        for slot, size in enumerate(_SIZES)
    ]


def _deriving(expression: str, kind: str, wishes: list[Wire], features: dict[str, bool]) -> Wire:
    rows = [{"name": _NAME, "expression": expression}]
    constraints: tuple[Wire, ...] = ({kind: _NAME},) if kind else ()
    claim = make_claim(*({"derivedAttributes": rows} | wish for wish in wishes), constraints=constraints)
    return world(*_devices(), claims=[claim], features={"DerivedAttributes": True} | features)


def _by_one_of_two(features: dict[str, bool]) -> Wire:
    """Return a world where one request derives what the other one finds on the devices."""
    rows = [{"name": _NAME, "expression": f"1 - {_OWN}.kind"}]
    claim = make_claim({"derivedAttributes": rows, "count": 2}, {"count": 2}, constraints=({"matchAttribute": _NAME},))
    return world(*_devices(), claims=[claim], features=features)


def _with_alternatives() -> Wire:
    """Return a claim of which only the second alternative can have two devices with the same value."""
    one = {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 2}
    choices = [
        one | {"name": "single", "derivedAttributes": [{"name": _NAME, "expression": f"{_OWN}.slot"}]},
        one | {"name": "pair", "derivedAttributes": [{"name": _NAME, "expression": f"{_OWN}.slot % 2"}]},
    ]
    claim = make_claim(constraints=({"matchAttribute": _NAME},))
    claim["spec"]["devices"]["requests"] = [{"name": "r0", "firstAvailable": choices}]
    return claim
