"""Worlds about constraints on attributes that are lists, or whose kinds differ."""

from __future__ import annotations

from cluster.oracle.worlds import DRIVER
from cluster.oracle.written.parts import Wire, make_claim, make_device, world


def lists_worlds() -> dict[str, Wire]:
    """Return worlds with constraints on attributes that are lists, or whose kinds differ."""
    values: dict[str, list[Wire]] = {
        "chain": [{"strings": ["a", "b"]}, {"strings": ["b", "c"]}, {"strings": ["c", "a"]}],
        "common": [{"strings": ["a", "b"]}, {"string": "b"}, {"strings": ["b", "c"]}],
        "ints": [{"ints": [1, 2]}, {"int": 2}, {"ints": [3]}],
        "kinds": [{"int": 1}, {"string": "1"}, {"ints": [1]}],
        "empty": [{"strings": []}, {"strings": ["a"]}, {"strings": ["a"]}],
        "versions": [{"versions": ["1.0.0", "2.0.0"]}, {"version": "2.0.0"}, {"versions": ["1.0.0"]}],
        "equal": [{"bools": [True]}, {"bool": True}, {"bool": False}],
    }
    found = {}
    for name, attributes in values.items():
        for kind in ("matchAttribute", "distinctAttribute"):
            for wishes in ([{"count": 2}], [{}, {}], [{"count": 3}], [{"allocationMode": "All", "count": 0}]):
                for lists in (True, False):
                    devices = [
                        make_device(f"gpu-{index}", shared=False, attributes={"links": value})
                        for index, value in enumerate(attributes)
                    ]
                    claims = [make_claim(*wishes, constraints=({kind: f"{DRIVER}/links"},))]
                    text = f"{kind} {name} {wishes} {'as lists' if lists else ''}"
                    found[text] = world(*devices, claims=claims, features={"ListTypeAttributes": lists})
    return found
