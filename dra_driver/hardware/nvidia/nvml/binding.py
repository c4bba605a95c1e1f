"""The binding to the library: how a call is made, and the calls about the library as a whole.

The one module that imports pynvml, which it does only when a library is loaded.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from typing import Any

from dra_driver.hardware.nvidia.nvml.fault import NvmlFault

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
