"""The device requests that represent a pod's extended resources.

In: a pod's containers, and which class serves which resource. Out: the requests, and the names of those that each
container uses. Init containers that end may use the devices that later containers will hold; beyond these, only the
largest number that one of them needs is requested in addition. Sidecars count as containers that keep running.

Source: scheduler plugin dynamicresources of Kubernetes 1.35, extended resources (KEP-5004). Kubernetes 1.34 makes a
request for every container.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_driver.model.quantity import Quantity
from dra_driver.model.wire import Wire


@dataclass(slots=True)
class ExtendedRequests:
    """Requests in the scheduler's order; `used` has the names that each container uses, init containers first."""

    requests: list[Wire] = field(default_factory=list)
    used: list[list[str]] = field(default_factory=list)


def extended_requests(pod: Wire, classes: Mapping[str, str]) -> ExtendedRequests:
    """Return the requests for a pod's extended resources that classes serve. Raises: QuantityError."""
    init, staying = list(pod["spec"].get("initContainers") or ()), list(pod["spec"].get("containers") or ())
    containers = [*init, *staying]
    amounts = [_amounts(container) for container in containers]
    ends = [n for n, one in enumerate(init) if one.get("restartPolicy") != "Always"]
    made = ExtendedRequests(used=[[] for _ in containers])
    for resource in sorted({name for one in amounts for name in one} & classes.keys()):
        _add(made, amounts, ends, resource, classes[resource])
    return made


def _add(
    made: ExtendedRequests, amounts: Sequence[Mapping[str, int]], ends: Sequence[int], resource: str, name: str
) -> None:
    """Add the requests for one resource."""
    held: dict[int, Wire] = {}
    for number, one in enumerate(amounts):
        if number not in ends and one.get(resource):
            held[number] = _request(number, one, resource, name, one[resource])
            made.used[number].append(held[number]["name"])
    surplus: dict[int, Wire] = {}
    for number in ends:
        missing = amounts[number].get(resource, 0)
        for later, request in held.items():
            if later >= number and missing > 0:
                made.used[number].append(request["name"])
                missing -= request["exactly"]["count"]
        if missing > 0:
            surplus[number] = _request(number, amounts[number], resource, name, missing)
    if surplus:
        largest = max(surplus.values(), key=lambda request: request["exactly"]["count"])
        made.requests.append(largest)
        for number in surplus:
            made.used[number].append(largest["name"])
    made.requests += held.values()


def _request(number: int, amounts: Mapping[str, int], resource: str, class_name: str, count: int) -> Wire:
    exactly = {"deviceClassName": class_name, "allocationMode": "ExactCount", "count": count}
    return {"name": f"container-{number}-request-{sorted(amounts).index(resource)}", "exactly": exactly}


def _amounts(container: Wire) -> dict[str, int]:
    """Return what a container requests; a limit replaces a missing request, as the API server fills it in."""
    resources: dict[str, Any] = container.get("resources") or {}
    wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {str(name): max(math.ceil(Quantity.parse(str(value)).value), 0) for name, value in wanted.items()}
