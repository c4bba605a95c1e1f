"""Wire objects: what the Kubernetes API sends and accepts, as plain JSON dicts with camelCase keys.

Nothing is dropped: a field of a newer server survives a read-modify-write, which typed models do not guarantee
(docs/decisions/0002). The aliases only state which object a dict is.
"""

from __future__ import annotations

from typing import Any

Wire = dict[str, Any]
SliceWire = dict[str, Any]  # resource.k8s.io/v1 ResourceSlice
DeviceWire = dict[str, Any]  # resource.k8s.io/v1 Device (an entry of spec.devices)
ClaimWire = dict[str, Any]  # resource.k8s.io/v1 ResourceClaim
ClassWire = dict[str, Any]  # resource.k8s.io/v1 DeviceClass
CdiWire = dict[str, Any]  # CDI specification document
