"""Validation result: a verdict, how it came about, and what it cost."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class ValidationVerdict(enum.StrEnum):
    """What is known about a device. Only FAILED says anything bad about it."""

    PASSED = "passed"
    FAILED = "failed"  # wrong data, an error of the device itself, no end within the deadline, a crash
    COULD_NOT_RUN = "could-not-run"  # the device is in use, a fabric is not ready, no library, no memory …


class ValidationLevel(enum.IntEnum):
    """How thoroughly a device is tested; each level includes those below it, except that COMMAND replaces 1 and 2."""

    READING = 0  # by the readings of the vendor's library
    COMPUTE = 1  # a context, 64 MiB of memory, a small kernel
    THOROUGH = 2  # nearly all of the memory, and how fast copies are
    COMMAND = 3  # a command of the administrator's


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """One result. `reason` is a stable word, empty for a device that passed; `detail` is for people.

    `figures` are what the test measured: contextMs, totalMs, sweptMiB, copyInMiBs, copyOutMiBs.
    """

    verdict: ValidationVerdict
    level: ValidationLevel
    reason: str = ""
    detail: str = ""
    seconds: float = 0.0
    figures: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_conclusive(self) -> bool:
        """Return whether the device was tested to an end."""
        return self.verdict is not ValidationVerdict.COULD_NOT_RUN


INTERRUPTED, HELD, BUSY, UNSUPPORTED, MEMORY = "interrupted", "held", "busy", "unsupported", "memory"
"""Reasons for COULD_NOT_RUN: a claim came; the device is in use; another test did not end in time; the vendor has
no test for the device; the machine had no memory for it."""
