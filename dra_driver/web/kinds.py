"""The kinds that the console watches: their paths in the API, and which of their objects are kept. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.kube import paths

PENDING = "status.phase=Pending"  # only these pods are kept; any other is read when a viewer opens its claim


@dataclass(frozen=True, slots=True)
class WatchedKind:
    """A kind that is watched: its path, whether it has namespaces, and the field selector for its objects."""

    name: str
    path: str
    has_namespaces: bool = True
    fields: str = ""


KINDS = (
    WatchedKind("Node", paths.NODES, has_namespaces=False),
    WatchedKind("ResourceSlice", paths.SLICES, has_namespaces=False),
    WatchedKind("DeviceClass", paths.CLASSES, has_namespaces=False),
    WatchedKind("ResourceClaim", paths.CLAIMS),
    WatchedKind("ResourceClaimTemplate", paths.TEMPLATES),
    WatchedKind("Pod", paths.PODS, fields=PENDING),
)
