"""NVML through nvidia-ml-py: how a call is made, and the calls about the library, a GPU, its links and settings.

In: a path of libnvidia-ml.so.1, handles and NVIDIA's ids. Out: plain values and `NvmlFault`. Every method is one
library call (or the versions of one call, or those needed to describe its result), announced to `mark` before it is
made. Never interprets a value beyond its unit, and never waits: the workers take care of deadlines. This is the one
module that imports pynvml, which it does only when a library is loaded.

Source: nvml.h and NVIDIA's NVML API reference.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Handle = Any  # a ctypes pointer that only the library understands
_ABSENT = frozenset(["NOT_SUPPORTED", "FUNCTION_NOT_FOUND"])


def is_same_handle(one: Handle, other: Handle) -> bool:
    """Return whether two handles point to the same thing; two that differ may still be of one device."""
    return bytes(one) == bytes(other)


class NvmlFault(Exception):
    """A library call failed: which one, and the name of the error without its NVML_ERROR_ prefix."""

    def __init__(self, call: str, name: str) -> None:
        super().__init__(f"{call}: {name}")
        self.call = call
        self.name = name

    @property
    def is_absent(self) -> bool:
        """Return whether this GPU or this library does not have the fact at all, rather than failing to report it."""
        return self.name in _ABSENT

    @property
    def is_lost(self) -> bool:
        """Return whether the GPU has fallen off the bus."""
        return self.name == "GPU_IS_LOST"

    @property
    def requires_reset(self) -> bool:
        """Return whether the GPU can't be used before it is reset."""
        return self.name == "RESET_REQUIRED"


INIT_FLAG_NO_GPUS = 1  # makes init succeed where no GPU is found


def load(path: str) -> None:
    """Load the library at `path` (or, for a bare soname, wherever the loader finds it) for all later calls.

    pynvml keeps its library, and every function that it found there, for good: for another library it is loaded anew.
    Raises: OSError when there is no such library or it can't be loaded.
    """
    library = ctypes.CDLL(path)
    import pynvml  # noqa: PLC0415 - 4 MiB that a node without GPUs must not pay

    if pynvml.nvmlLib is not None:
        importlib.reload(pynvml)
    pynvml.nvmlLib = library


class Binding:
    """The loaded library, as one worker uses it."""

    def __init__(self, mark: Callable[[str], None]) -> None:
        import pynvml  # noqa: PLC0415 - see load

        self._api = pynvml
        self._mark = mark
        self._names = {v: n.removeprefix("NVML_ERROR_") for n, v in vars(pynvml).items() if n.startswith("NVML_ERROR_")}
        self._functions: dict[str, Any] = {}

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
        """Call a function of the library without the bindings' wrapper; they still name its errors.

        A wrapper takes as long as the call itself, which matters for those that a Prepare of a partition makes.
        """
        call = self._functions.get(function)
        self._mark(function)
        if call is None:
            call = self._functions[function] = self._found(function)
        if code := call(*arguments):
            raise NvmlFault(function, self._name_of(code))

    def _found(self, function: str) -> Any:
        """Return a function of the library. Raises: NvmlFault."""
        try:
            return getattr(self._api.nvmlLib, function)
        except AttributeError:
            raise NvmlFault(function, "FUNCTION_NOT_FOUND") from None

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
        """Return the number of GPUs that the library reports."""
        return int(self._call("nvmlDeviceGetCount"))


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


UNLIMITED = (1 << 64) - 1  # the value of NVML_DEVICE_MEMORY_LIMIT_MAX


class SettingCalls(Binding):
    """The settings that this driver reads and changes."""

    def compute_mode(self, device: Handle) -> int:
        """Return the compute mode, an NVML_COMPUTEMODE_*."""
        return int(self._call("nvmlDeviceGetComputeMode", device))

    def set_compute_mode(self, device: Handle, mode: int) -> None:
        """Set the compute mode, an NVML_COMPUTEMODE_*."""
        self._call("nvmlDeviceSetComputeMode", device, mode)

    def persistence_mode(self, gpu: Handle) -> bool:
        """Return whether the driver keeps the GPU initialised while no process uses it."""
        return bool(self._call("nvmlDeviceGetPersistenceMode", gpu))

    def set_persistence_mode(self, gpu: Handle, *, enabled: bool) -> None:
        """Switch persistence mode, which ends with the driver."""
        self._call("nvmlDeviceSetPersistenceMode", gpu, int(enabled))

    # -- memory limits of a cgroup, since release 615

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
