"""NVML through nvidia-ml-py: the one module that imports pynvml, which it does only when a library is loaded.

In: a path of libnvidia-ml.so.1. Out: plain values and `NvmlFault`. Every method is one library call (or the versions of
one call, newest first), announced to `mark` before it is made. Never interprets a value beyond its unit, and never
waits: the workers take care of deadlines.

Source: nvml.h and NVIDIA's NVML API reference.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dra_driver.hardware.nvidia.nvml_mig import Handle, MigCalls, NvmlFault
from dra_driver.model.lean import lean_imports

INIT_FLAG_NO_GPUS = 1  # makes init succeed where no GPU is found
MAX_LINKS = 36
UNLIMITED = (1 << 64) - 1  # the value of NVML_DEVICE_MEMORY_LIMIT_MAX
FABRIC_COMPLETED = 3


def load(path: str) -> None:
    """Load the library at `path` (or, for a bare soname, wherever the loader finds it) for all later calls.

    pynvml keeps its library and every function pointer for good, so both are replaced here.
    Raises: OSError when there is no such library or it can't be loaded.
    """
    library = ctypes.CDLL(path)
    with lean_imports():
        import pynvml  # noqa: PLC0415 - 4 MiB that a node without GPUs must not pay

    with pynvml.libLoadLock:
        pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001
        pynvml.nvmlLib = library


@dataclass(frozen=True, slots=True)
class Fabric:
    """A GPU's place in an NVLink fabric. `cluster_uuid` is 16 bytes, all zero where no cluster is configured."""

    state: int
    status: int
    cluster_uuid: bytes
    clique_id: int


class Nvml(MigCalls):
    """The library calls that this driver makes. Each worker has one object; all share the loaded library."""

    def __init__(self, mark: Callable[[str], None]) -> None:
        import pynvml  # noqa: PLC0415 - see load

        self._api = pynvml
        self._mark = mark
        self._names = {v: n.removeprefix("NVML_ERROR_") for n, v in vars(pynvml).items() if n.startswith("NVML_ERROR_")}

    def _call(self, function: str, *arguments: Any) -> Any:
        call = getattr(self._api, function, None)
        if call is None:
            raise NvmlFault(function, "FUNCTION_NOT_FOUND")
        self._mark(function)
        try:
            return call(*arguments)
        except self._api.NVMLError as fault:
            raise NvmlFault(function, self._name_of(getattr(fault, "value", 999))) from None
        except (ValueError, ctypes.ArgumentError) as fault:  # the text is not UTF-8
            raise NvmlFault(function, f"returned no text: {fault}") from None

    def _call_library(self, function: str, *arguments: Any) -> None:
        """Call a function for which the bindings have no wrapper; they still find it and name its errors."""
        self._mark(function)
        try:
            self._api._nvmlCheckReturn(self._api._nvmlGetFunctionPointer(function)(*arguments))  # noqa: SLF001
        except self._api.NVMLError as fault:
            raise NvmlFault(function, self._name_of(getattr(fault, "value", 999))) from None

    # -- the library as a whole

    def init(self) -> None:
        """Start using the library; GPUs may be absent.

        The flag NO_ATTACH is not set, because it leaves queries unanswered.
        """
        try:
            self._call("nvmlInitWithFlags", INIT_FLAG_NO_GPUS)
        except NvmlFault as fault:
            if fault.name not in {"FUNCTION_NOT_FOUND", "INVALID_ARGUMENT"}:
                raise
            self._plain_init()

    def _plain_init(self) -> None:
        self._mark("nvmlInit_v2")
        try:
            code = int(self._api.nvmlLib.nvmlInit_v2())
        except AttributeError:
            raise NvmlFault("nvmlInit_v2", "FUNCTION_NOT_FOUND") from None
        if code:
            raise NvmlFault("nvmlInit_v2", self._name_of(code))

    def _name_of(self, code: int) -> str:
        return str(self._names.get(code, f"error {code}"))

    def shutdown(self) -> None:
        """Release everything that init took, device nodes included."""
        self._call("nvmlShutdown")

    def driver_version(self) -> str:
        """Return the driver's version as the driver spells it ("580.65.06")."""
        return str(self._call("nvmlSystemGetDriverVersion"))

    def cuda_driver_version(self) -> int:
        """Return CUDA's version as 1000 for each major and 10 for each minor version."""
        try:
            return int(self._call("nvmlSystemGetCudaDriverVersion_v2"))
        except NvmlFault as fault:
            if fault.name != "FUNCTION_NOT_FOUND":
                raise
            return int(self._call("nvmlSystemGetCudaDriverVersion"))

    def count(self) -> int:
        """Return the number of GPUs that the library knows."""
        return int(self._call("nvmlDeviceGetCount"))

    # -- one GPU

    def gpu(self, index: int) -> Handle:
        """Return the handle of the GPU at an index (in PCI order)."""
        return self._call("nvmlDeviceGetHandleByIndex", index)

    def by_uuid(self, uuid: str) -> Handle:
        """Return the handle of the GPU or MIG device with a UUID."""
        return self._call("nvmlDeviceGetHandleByUUID", uuid)

    def uuid(self, device: Handle) -> str:
        """Return the UUID of a GPU or a MIG device."""
        return str(self._call("nvmlDeviceGetUUID", device))

    def pci_address(self, gpu: Handle) -> str:
        """Return the PCI address as the library writes it (`00000000:65:00.0`)."""
        pci = self._call("nvmlDeviceGetPciInfo", gpu)
        return _text(pci.busId) or f"{pci.domain:08x}:{pci.bus:02x}:{pci.device:02x}.0"

    def minor(self, gpu: Handle) -> int:
        """Return the minor number N of /dev/nvidiaN."""
        return int(self._call("nvmlDeviceGetMinorNumber", gpu))

    def memory_bytes(self, gpu: Handle) -> int:
        """Return the size of the GPU's memory in bytes, by the first version of the call that the library knows."""
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

    # -- compute mode, of a GPU or a MIG device

    def compute_mode(self, device: Handle) -> int:
        """Return the compute mode, an NVML_COMPUTEMODE_*."""
        return int(self._call("nvmlDeviceGetComputeMode", device))

    def set_compute_mode(self, device: Handle, mode: int) -> None:
        """Set the compute mode, an NVML_COMPUTEMODE_*."""
        self._call("nvmlDeviceSetComputeMode", device, mode)

    # -- memory limits of a cgroup, since release 615

    def persistence_mode(self, gpu: Handle) -> bool:
        """Return whether the driver keeps the GPU initialised while no process uses it."""
        return bool(self._call("nvmlDeviceGetPersistenceMode", gpu))

    def set_persistence_mode(self, gpu: Handle, *, enabled: bool) -> None:
        """Switch persistence mode, which ends with the driver."""
        self._call("nvmlDeviceSetPersistenceMode", gpu, int(enabled))

    def memory_limit(self, gpu: Handle, cgroup: str) -> int:
        """Return the limit of GPU memory for the processes of a cgroup in bytes, or UNLIMITED where none is set."""
        limits = self._limits("c_nvmlGetMemoryLimits_v1_t", cgroup)
        self._call("nvmlDeviceGetMemoryLimits_v1", gpu, limits)
        return int(limits.hardLimit)

    def set_memory_limit(self, gpu: Handle, cgroup: str, limit: int) -> None:
        """Set the limit of GPU memory for the processes of a cgroup.

        No soft limit is set: it reserves memory, and the reservation outlives a cgroup in those above it.
        """
        limits = self._limits("c_nvmlSetMemoryLimits_v1_t", cgroup)
        limits.softLimit, limits.hardLimit = 0, limit
        self._call("nvmlDeviceSetMemoryLimits_v1", gpu, limits)

    def _limits(self, structure: str, cgroup: str) -> Any:
        made = getattr(self._api, structure, None)
        if made is None:
            raise NvmlFault(structure, "FUNCTION_NOT_FOUND")
        limits = made()
        limits.nameSpace = cgroup.encode()
        return limits

    # -- links

    def link_is_active(self, gpu: Handle, link: int) -> bool:
        """Return whether an NVLink is up."""
        return bool(self._call("nvmlDeviceGetNvLinkState", gpu, link))

    def link_remote_address(self, gpu: Handle, link: int) -> str:
        """Return the PCI address at the other end of an NVLink."""
        return _text(self._call("nvmlDeviceGetNvLinkRemotePciInfo", gpu, link).busId)

    def link_remote_type(self, gpu: Handle, link: int) -> int:
        """Return the kind of device at the other end of an NVLink, an NVML_NVLINK_DEVICE_TYPE_*.

        0 is a GPU, 1 an IBM NPU, 2 a switch, 255 unknown.
        """
        return int(self._call("nvmlDeviceGetNvLinkRemoteDeviceType", gpu, link))

    def fabric(self, gpu: Handle) -> Fabric:
        """Return the GPU's place in an NVLink fabric, by the newest version of the call that the library knows."""
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

    # -- processes

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


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
