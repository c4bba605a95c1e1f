"""A library call that failed, and the handle that calls are about."""

from __future__ import annotations

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
