"""Validation result: a verdict, its reason, and what the test measured."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class ValidationVerdict(enum.StrEnum):
    """What a test has shown about a device. Only FAILED means that something is wrong with it."""

    PASSED = "passed"
    FAILED = "failed"  # wrong data, an error of the device itself, no end within the deadline, a crash
    COULD_NOT_RUN = "could-not-run"  # the device is in use, a fabric is not ready, no library, no memory …


class ValidationLevel(enum.IntEnum):
    """How thoroughly a device is tested; each level includes those below it, except that COMMAND replaces 1 and 2."""

    READING = 0  # what the vendor's library reports about the device
    COMPUTE = 1  # a context, 64 MiB of memory, a small kernel
    THOROUGH = 2  # nearly all of the memory, and the speed of copies
    COMMAND = 3  # the administrator's command


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
        """Whether the test ran to an end."""
        return self.verdict is not ValidationVerdict.COULD_NOT_RUN


INTERRUPTED, HELD, BUSY, UNSUPPORTED, MEMORY = "interrupted", "held", "busy", "unsupported", "memory"
"""Reasons for COULD_NOT_RUN: a claim arrived; the device is in use; another test did not end in time; the vendor has
no test for the device; there was not enough memory for the test."""
