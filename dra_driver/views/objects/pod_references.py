"""Pod references: the names by which a pod and its containers refer to claims, as the API server checks them.

In: a pod. Out: an error for the first reference that no API server would store, whether or not the claim exists.
Source: Kubernetes, pkg/apis/core/validation, validatePodResourceClaims and validateResourceClaimNames.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dra_driver.model.errors import InputError
from dra_driver.model.wire import Wire

_WAYS = ("resourceClaimName", "resourceClaimTemplateName")


def bad_reference(pod: Wire, title: str) -> InputError | None:
    """Return the error for the first bad reference of a pod, which `title` names; None if there is none."""
    for path, cause in _faults(pod.get("spec") or {}):
        return InputError("object", f"{title}: {path}: {cause}", hint="the API server refuses such an object")
    return None


def _faults(spec: Wire) -> Iterator[tuple[str, str]]:
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
