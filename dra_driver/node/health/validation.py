"""What a validation is: its levels, its verdicts, what a test gave; and how an agent tests, from `--validate`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from dra_driver.base.errors import UsageError

# Validation setting: how an agent tests devices, read from `--validate`.


@dataclass(frozen=True, slots=True)
class ValidationSetting:
    """How devices are tested: `level` is None if they are not; `command` has the words of level COMMAND's command."""

    level: ValidationLevel | None
    command: tuple[str, ...] = ()


NO_VALIDATION = ValidationSetting(None)


def read_setting(text: str) -> ValidationSetting:
    """Return what `none`, `0`, `1`, `2` or a command means. Raises: UsageError("usage.validate")."""
    if text == "none":
        return NO_VALIDATION
    if text in {"0", "1", "2"}:
        return ValidationSetting(ValidationLevel(int(text)))
    return ValidationSetting(ValidationLevel.COMMAND, command_of(text))


def command_of(text: str) -> tuple[str, ...]:
    """Return the words of a command, which begins with an absolute path. Raises: UsageError("usage.validate")."""
    import shlex  # noqa: PLC0415 - only where a command is configured

    hint = "none, 0, 1, 2, or a command that begins with an absolute path"
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError("validate", f"{text!r:.80} is not a valid command: {error}", hint=hint) from error
    if not words or not PurePosixPath(words[0]).is_absolute():
        raise UsageError("validate", f"{text!r:.80} is neither a level nor an absolute path", hint=hint)
    return words


# Validation result: a verdict, its reason, and what the test measured.


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
