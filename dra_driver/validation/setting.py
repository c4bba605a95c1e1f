"""Validation setting: how an agent tests devices, read from `--validate`.

>>> read_setting("1").level, read_setting("/usr/bin/diag -i {uuid}").command
(<ValidationLevel.COMPUTE: 1>, ('/usr/bin/diag', '-i', '{uuid}'))
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from dra_driver.model.errors import UsageError
from dra_driver.validation.result import ValidationLevel


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
