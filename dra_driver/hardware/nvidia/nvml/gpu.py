"""NVML's queries about one GPU: which it is, what it has, and which processes use it."""

from __future__ import annotations

import ctypes
from typing import Any

from dra_driver.hardware.nvidia.nvml.binding import Binding
from dra_driver.hardware.nvidia.nvml.fault import Handle, NvmlFault


class GpuQueries(Binding):
    """What the library reports about one GPU."""

    def gpu(self, index: int) -> Handle:
        """Return the handle of the GPU at an index (in PCI order)."""
        return self._call("nvmlDeviceGetHandleByIndex", index)

    def by_uuid(self, uuid: str) -> Handle:
        """Return the handle of the GPU or MIG device with a UUID."""
        return self._call("nvmlDeviceGetHandleByUUID", uuid)

    def uuid(self, device: Handle) -> str:
        """Return the UUID of a GPU or a MIG device."""
        text = (ctypes.c_char * self._api.NVML_DEVICE_UUID_V2_BUFFER_SIZE)()
        self._call_library("nvmlDeviceGetUUID", device, text, len(text))
        try:
            return str(text.value, "utf-8")
        except UnicodeDecodeError as fault:
            raise NvmlFault("nvmlDeviceGetUUID", f"returned no text: {fault}") from None

    def pci_address(self, gpu: Handle) -> str:
        """Return the PCI address as the library writes it (`00000000:65:00.0`)."""
        pci = self._call("nvmlDeviceGetPciInfo", gpu)
        return text_of(pci.busId) or f"{pci.domain:08x}:{pci.bus:02x}:{pci.device:02x}.0"

    def minor(self, gpu: Handle) -> int:
        """Return the minor number N of /dev/nvidiaN."""
        return int(self._call("nvmlDeviceGetMinorNumber", gpu))

    def memory_bytes(self, gpu: Handle) -> int:
        """Return the size of the GPU's memory in bytes, by the first version of the call that the library has."""
        try:
            return int(self._call("nvmlDeviceGetMemoryInfo", gpu).total)
        except NvmlFault as fault:
            if fault.name != "FUNCTION_NOT_FOUND":
                raise
            return int(self._call("nvmlDeviceGetMemoryInfo", gpu, self._api.nvmlMemory_v2).total)

    def name(self, device: Handle) -> str:
        """Return the product name; that of a MIG device ends with its profile."""
        return str(self._call("nvmlDeviceGetName", device))

    def brand(self, gpu: Handle) -> int:
        """Return the brand, an NVML_BRAND_*."""
        return int(self._call("nvmlDeviceGetBrand", gpu))

    def architecture(self, gpu: Handle) -> int:
        """Return the architecture, an NVML_DEVICE_ARCH_*."""
        return int(self._call("nvmlDeviceGetArchitecture", gpu))

    def compute_capability(self, gpu: Handle) -> tuple[int, int]:
        """Return CUDA's compute capability, major and minor."""
        major, minor = self._call("nvmlDeviceGetCudaComputeCapability", gpu)
        return int(major), int(minor)

    def addressing_mode(self, gpu: Handle) -> int:
        """Return the addressing mode, an NVML_DEVICE_ADDRESSING_MODE_*."""
        return int(self._call("nvmlDeviceGetAddressingMode", gpu))

    def ecc_enabled(self, gpu: Handle) -> bool:
        """Return whether ECC is on now (not whether it will be after the next reboot)."""
        return bool(self._call("nvmlDeviceGetEccMode", gpu)[0])

    def serial(self, gpu: Handle) -> str:
        """Return the board's serial number."""
        return str(self._call("nvmlDeviceGetSerial", gpu))

    def vbios_version(self, gpu: Handle) -> str:
        """Return the version of the video BIOS."""
        return str(self._call("nvmlDeviceGetVbiosVersion", gpu))

    def memory_bus_bits(self, gpu: Handle) -> int:
        """Return the width of the memory bus in bits."""
        return int(self._call("nvmlDeviceGetMemoryBusWidth", gpu))

    def memory_clock_max_mhz(self, gpu: Handle) -> int:
        """Return the highest memory clock in MHz."""
        return int(self._call("nvmlDeviceGetMaxClockInfo", gpu, self._api.NVML_CLOCK_MEM))

    def sm_clock_max_mhz(self, gpu: Handle) -> int:
        """Return the highest clock of the multiprocessors in MHz."""
        return int(self._call("nvmlDeviceGetMaxClockInfo", gpu, self._api.NVML_CLOCK_SM))

    def power_limit_max_mw(self, gpu: Handle) -> int:
        """Return the highest power limit that may be set, in milliwatts."""
        return int(self._call("nvmlDeviceGetPowerManagementLimitConstraints", gpu)[1])

    def processes(self, device: Handle) -> frozenset[int]:
        """Return the ids of all processes on a GPU or a MIG device: compute, graphics and MPS clients."""
        found: set[int] = set()
        asked = 0
        for kind in ("Compute", "Graphics", "MPSCompute"):
            try:
                found.update(self._processes(f"nvmlDeviceGet{kind}RunningProcesses", device))
                asked += 1
            except NvmlFault as fault:
                if not fault.is_absent or (kind == "MPSCompute" and not asked):
                    raise
        return frozenset(found)

    def _processes(self, function: str, device: Handle) -> list[int]:
        try:
            return [int(process.pid) for process in self._call(f"{function}_v3", device)]
        except NvmlFault as fault:
            if fault.name != "FUNCTION_NOT_FOUND":
                raise
            return [int(process.pid) for process in self._call(f"{function}_v2", device)]


def text_of(value: Any) -> str:
    """Return a text of a structure of the library."""
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
