"""Extended resources of device plugins, read from containers: which kind of device, and how many.

In: a container's `resources`, and `Known` names: those that a sharing configuration defines, or that mean a share
although they look like a whole device. Out: how many of which `DeviceKind`.

Source: NVIDIA's device plugin: resources nvidia.com/gpu, nvidia.com/mig-<profile> ("+" of a profile written "."), and
".shared" appended where replicas are renamed. Kubernetes: extended resources are whole numbers, requests equal limits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dra_driver.migrate.device_kind import DeviceKind
from dra_driver.migrate.other_vendors import kind_of_another_vendor
from dra_driver.model.errors import InputError
from dra_driver.model.quantity import Quantity
from dra_driver.model.quantity_text import QuantityError

WHOLE = "nvidia.com/gpu"
_PARTITION = re.compile(r"nvidia\.com/mig-((?:[0-9]+c\.)?[0-9]+g\.[0-9]+gb)([-.][a-z.]+)?")
SHARED = ".shared"
QUOTA = "requests."


Known = Mapping[str, DeviceKind]
NOTHING_KNOWN: Known = MappingProxyType({})


def kind_of(resource: str, known: Known = NOTHING_KNOWN) -> DeviceKind | None:
    """Return the kind of device that a resource stands for; None if it is not a resource of the device plugin.

    >>> kind_of("nvidia.com/mig-1g.10gb.me").words, kind_of("nvidia.com/gpu.shared").device_class, kind_of("cpu")
    ('MIG partition 1g.10gb+me', 'gpu-share.nvidia.com', None)
    """
    if resource in known:
        return known[resource]
    stem = resource.removesuffix(SHARED)
    is_share = stem != resource
    if stem == WHOLE:
        return DeviceKind(is_share=is_share)
    found = _PARTITION.fullmatch(stem)
    if found is None:
        return kind_of_another_vendor(resource)
    rest = found[2] or ""
    return DeviceKind(True, is_share, found[1] + (f"+{rest[1:]}" if rest.startswith(".") else rest))


def rows_of(value: Any) -> list[tuple[int, dict[str, Any]]]:
    """Return the mappings of a list with their positions; whatever is not a mapping, or not a list, is skipped."""
    return (
        [(number, one) for number, one in enumerate(value) if isinstance(one, dict)] if isinstance(value, list) else []
    )


_MAX_COUNT = 100_000  # a higher number of devices for one container is taken for a mistake


def counts_of(resources: Any, at: str, known: Known = NOTHING_KNOWN) -> dict[str, int]:
    """Return how many of each of the device plugin's resources a container requests, including counts of 0.

    Raises: InputError("input.resource") if a count is not a whole number, or if requests differ from limits.
    """
    found: dict[str, int] = {}
    for field in ("limits", "requests"):
        amounts = resources.get(field) if isinstance(resources, Mapping) else None
        for name, amount in amounts.items() if isinstance(amounts, Mapping) else ():
            if kind_of(name, known) is None:
                continue
            count = whole_number(amount, f"{at}: {field}: {name}")
            if found.setdefault(name, count) != count:
                raise InputError(
                    "resource",
                    f"{at}: {name}: requests ({count}) differ from limits ({found[name]})",
                    hint="Kubernetes requires them to be equal for such a resource; leave the requests out",
                )
    return found


def whole_number(amount: Any, at: str) -> int:
    """Return a count as an int.

    Raises: InputError("input.resource") if it is not a whole number from 0 to 100,000.
    """
    hint = "write a whole number; fill in variables (envsubst, helm template) before migrating"
    if isinstance(amount, bool) or not isinstance(amount, int | str | float):
        raise InputError("resource", f"{at}: {amount!r} is not a whole number", hint=hint)
    try:
        exact = Quantity.parse(str(amount)).value
    except QuantityError as fault:
        raise InputError("resource", f"{at}: {str(amount)!r} is not a whole number", hint=hint) from fault
    if exact < 0 or exact != int(exact) or exact > _MAX_COUNT:
        raise InputError("resource", f"{at}: {str(amount)!r} is not a whole number", hint=hint)
    return int(exact)
