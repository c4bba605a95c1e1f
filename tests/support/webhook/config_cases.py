"""Opaque parameters, right and wrong, on which everything that judges configs has to agree."""

from __future__ import annotations

from typing import Any

API = "resource.nvidia.com/v1beta1"
_ABSENT = object()
_UUID = "GPU-11111111-2222-3333-4444-555555555555"


def _config(kind: Any = "GpuConfig", sharing: Any = _ABSENT, **more: Any) -> dict[str, Any]:
    made = {"apiVersion": API, "kind": kind, **more}
    return made if sharing is _ABSENT else {**made, "sharing": sharing}


def _sliced(slicing: Any, strategy: Any = "TimeSlicing", kind: str = "GpuConfig") -> dict[str, Any]:
    return _config(kind, {"strategy": strategy, "timeSlicingConfig": slicing})


def _mps(settings: Any, strategy: Any = "MPS", kind: str = "GpuConfig") -> dict[str, Any]:
    return _config(kind, {"strategy": strategy, "mpsConfig": settings})


def _vfio(iommu: Any) -> dict[str, Any]:
    return _config("VfioDeviceConfig", iommu=iommu)


_KINDS = ("GpuConfig", "MigDeviceConfig")
_PERCENT = "defaultActiveThreadPercentage"
_LIMIT = "defaultPinnedDeviceMemoryLimit"
_EACH = "defaultPerDevicePinnedMemoryLimit"
_KEYS = ("0", "15", "999", "1000", "-1", "x", "", "\u0663", "GPU-", "GPU-x", "gpu-x", "MIG-1/2", _UUID, "GPU-x y")
_LIMITS = (
    *("10Gi", "1Mi", "1048576", "1.5Gi", "1e9", "2E", "1048575", "1023Ki", "0", "-1Gi", "+1Gi", "10GB", "Gi", ""),
    *(" 1Gi", "1Gi ", "1gi", "0x10", "1_000_000_000", "nan", "1000000000n", "2000000000000000m", ".5Gi"),
    *("1e999999999", "1e-999999999", "9223372036854775807", "9223372036854775808", "8Ei", "1e18", "1e19"),
    *("5.Gi", "9e99", 1048576, 1048575, 0, -1, 10**12, 1.5, 2097152.0, True, None, [], {}, ["1Gi"]),
)  # fmt: skip
AMD_API = "gpu.resource.amd.com/v1alpha1"


def _amd(kind: Any = "GpuConfig", **more: Any) -> dict[str, Any]:
    return {"apiVersion": AMD_API, "kind": kind, **more}


AMD_PARAMETERS: tuple[dict[str, Any], ...] = (
    {"apiVersion": AMD_API},
    *(_amd(kind) for kind in ("GpuConfig", "VfioDeviceConfig", "MigDeviceConfig", "gpuconfig", "", None, 3, {}, [])),
    *(_amd(computeUnits=units) for units in (None, {}, [], "4", 4, True, {"Count": 4}, {"count": 4, "mask": "0x3"})),
    *(
        _amd(computeUnits={"count": count})
        for count in (1, 76, 4096, 4097, 0, -1, True, None, "4", 4.0, 4.5, [], {}, 2**63 - 1)
    ),
    *(_amd("VfioDeviceConfig", iommu=iommu) for iommu in (None, {}, [], "LegacyOnly", {"colour": 1})),
    *(_amd("VfioDeviceConfig", iommu={"backendPolicy": policy}) for policy in ("PreferIommuFD", "x", None, 3)),
    *(_amd("VfioDeviceConfig", iommu={"enableAPIDevice": value}) for value in (True, None, "true", 1)),
    _amd("VfioDeviceConfig", computeUnits={"count": 4}),
    _amd(iommu={}),
    _amd(sharing={"strategy": "TimeSlicing"}),
    _amd(metadata={"name": "x"}),
)
PARAMETERS: tuple[dict[str, Any], ...] = (
    {},
    {"apiVersion": API},
    {"kind": "GpuConfig"},
    *({"apiVersion": version, "kind": "GpuConfig"} for version in ("v1", "", None, 3, "resource.nvidia.com/v1", [])),
    *(_config(kind) for kind in ("GpuConfig", "MigDeviceConfig", "gpuconfig", "VfioDeviceConfig", "", None, 3, {})),
    *(_vfio(iommu) for iommu in (None, {}, [], "LegacyOnly", 3, True, {"colour": 1})),
    *(
        _vfio({"backendPolicy": policy})
        for policy in ("LegacyOnly", "PreferIommuFD", "preferIommuFD", "", None, 3, True, [])
    ),
    *(_vfio({"enableAPIDevice": value}) for value in (True, False, None, "true", 1, 0, [], {})),
    _config("VfioDeviceConfig", {"strategy": "MPS"}),
    {"apiVersion": API, "kind": "GpuConfig", "iommu": {}},
    _config("ComputeDomainChannelConfig", domainID="x", allocationMode="All"),
    _config(sharingg={"strategy": "MPS"}),
    _config(metadata={"name": "x"}),
    *(_config(kind, sharing) for kind in _KINDS for sharing in (None, {}, [], "MPS", 3, True)),
    *(
        _config(kind, {"strategy": strategy})
        for kind in _KINDS
        for strategy in ("MPS", "TimeSlicing", "mps", "", None, 3, ["MPS"], "Exclusive")
    ),
    _config(sharing={"strategy": "MPS", "colour": "red"}),
    *(_sliced(slicing) for slicing in (None, {}, [], "Long", 3, {"interval": None}, {"Interval": "Long"})),
    *(_sliced({"interval": i}) for i in ("Default", "Short", "Medium", "Long", "long", "", "Forever", 3, True, [], {})),
    *(_sliced({"interval": "Long"}, strategy) for strategy in ("MPS", "nonsense", None)),
    *(_sliced(slicing, kind="MigDeviceConfig") for slicing in (None, {}, {"interval": "Long"})),
    *(_sliced(slicing, "MPS") for slicing in (None, {})),
    *(_mps(settings, kind=kind) for kind in _KINDS for settings in (None, {}, [], "x", 3)),
    *(_mps({"colour": 1}, kind=kind) for kind in _KINDS),
    *(_mps(settings, "TimeSlicing", kind) for kind in _KINDS for settings in (None, {}, 3)),
    *(_mps({_PERCENT: p}) for p in (0, 1, 50, 100, 101, -1, 5.5, 50.0, "50", "50%", True, None, [], 2**63 - 1)),
    *(_mps({"multiUser": value}, kind="MigDeviceConfig") for value in (True, False, None, "true", 1, 0, [])),
    *(_mps({_LIMIT: limit}) for limit in _LIMITS),
    *(_mps({_EACH: {_UUID: limit}}) for limit in _LIMITS),
    *(_mps({_EACH: limits}) for limits in (None, {}, [], "1Gi", 3)),
    *(
        _mps({_EACH: {key: "1Gi", "0": "2Gi"}}, kind="MigDeviceConfig")
        for key in _KEYS
    ),
    _mps({_PERCENT: 50, _LIMIT: "10Gi", _EACH: {"0": "1Gi", _UUID: 2**30}, "multiUser": True}),
    _config(sharing={"strategy": "MPS", "mpsConfig": {_PERCENT: 300}, "timeSlicingConfig": {"interval": "x"}, "x": 1}),
)  # fmt: skip
