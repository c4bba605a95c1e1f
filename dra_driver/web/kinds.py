"""The kinds that the console watches: where each stands in the API, and which of its objects are kept. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.kube import paths

PENDING = "status.phase=Pending"  # of all pods only these are kept; any other is read when someone looks at it


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
