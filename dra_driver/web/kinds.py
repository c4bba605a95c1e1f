"""The kinds that the console watches: their paths in the API, and which of their objects are kept. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.kube import paths

PENDING = "status.phase=Pending"  # only these pods are kept; any other is read when a viewer opens its claim


@dataclass(frozen=True, slots=True)
class SharedKind:
    """A kind that is watched: its path, the fields that choose among its objects, and whether it has namespaces."""

    name: str
    path: str
    has_namespaces: bool = True
    fields: str = ""


KINDS = (
    SharedKind("Node", paths.NODES, has_namespaces=False),
    SharedKind("ResourceSlice", paths.SLICES, has_namespaces=False),
    SharedKind("DeviceClass", paths.CLASSES, has_namespaces=False),
    SharedKind("ResourceClaim", paths.CLAIMS),
    SharedKind("ResourceClaimTemplate", paths.TEMPLATES),
    SharedKind("Pod", paths.PODS, fields=PENDING),
)
