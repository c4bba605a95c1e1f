"""NVML's queries about a GPU's links: NVLinks, and its place in a fabric of them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from dra_driver.hardware.nvidia.nvml.binding import Binding
from dra_driver.hardware.nvidia.nvml.fault import Handle, NvmlFault
from dra_driver.hardware.nvidia.nvml.gpu import text_of

MAX_LINKS = 36
FABRIC_COMPLETED = 3


@dataclass(frozen=True, slots=True)
class Fabric:
    """A GPU's place in an NVLink fabric. `cluster_uuid` is 16 bytes, all zero where no cluster is configured."""

    state: int
    status: int
    cluster_uuid: bytes
    clique_id: int


class LinkQueries(Binding):
    """What the library reports about a GPU's links."""

    def link_is_active(self, gpu: Handle, link: int) -> bool:
        """Return whether an NVLink is up."""
        return bool(self._call("nvmlDeviceGetNvLinkState", gpu, link))

    def link_remote_address(self, gpu: Handle, link: int) -> str:
        """Return the PCI address at the other end of an NVLink."""
        return text_of(self._call("nvmlDeviceGetNvLinkRemotePciInfo", gpu, link).busId)

    def link_remote_type(self, gpu: Handle, link: int) -> int:
        """Return the kind of device at the other end of an NVLink, an NVML_NVLINK_DEVICE_TYPE_*.

        0 is a GPU, 1 an IBM NPU, 2 a switch, 255 unknown.
        """
        return int(self._call("nvmlDeviceGetNvLinkRemoteDeviceType", gpu, link))

    def fabric(self, gpu: Handle) -> Fabric:
        """Return the GPU's place in an NVLink fabric, by the newest version of the call that the library has."""
        for structure in ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t"):
            make = getattr(self._api, structure, None)
            try:
                if make is not None:
                    return self._fabric("nvmlDeviceGetGpuFabricInfoV", gpu, make())
            except NvmlFault as fault:
                if fault.name not in {"FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH", "INVALID_ARGUMENT"}:
                    raise
        return self._fabric("nvmlDeviceGetGpuFabricInfo", gpu, self._api.c_nvmlGpuFabricInfo_t())

    def _fabric(self, function: str, gpu: Handle, structure: Any) -> Fabric:
        self._call(function, gpu, ctypes.byref(structure))
        return Fabric(
            int(structure.state), int(structure.status), bytes(structure.clusterUuid), int(structure.cliqueId)
        )
