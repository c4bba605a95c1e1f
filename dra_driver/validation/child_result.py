"""Child result: the result of a test, derived from how its process ended.

Pure. A test that did not end, or crashed, counts against the device, because this is how a hanging GPU shows. A test
that was ended from outside, or for lack of memory, shows nothing about the device.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from dra_driver.validation.child import ChildEnd
from dra_driver.validation.result import INTERRUPTED, MEMORY, ValidationLevel, ValidationResult, ValidationVerdict

PASSED, FAILED, COULD_NOT_RUN = ValidationVerdict
COMMAND_FAILED = 1  # the exit status by which an administrator's command reports that the device is bad
_FROM_OUTSIDE = frozenset([signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM])


def result_of(end: ChildEnd, level: ValidationLevel) -> ValidationResult:
    """Return the result of one of this driver's own test programs."""
    verdict, reason, detail = _outcome(end)
    figures = _figures(end.verdict) if verdict is PASSED else {}
    return ValidationResult(verdict, level, reason, detail, end.seconds, figures)


def result_of_command(end: ChildEnd) -> ValidationResult:
    """Return the result of an administrator's command: 0 passed, 1 failed, anything else could not run."""
    level = ValidationLevel.COMMAND
    if end.is_out_of_memory:
        return ValidationResult(COULD_NOT_RUN, level, MEMORY, "the command took too much memory", end.seconds)
    if end.is_late:
        return ValidationResult(COULD_NOT_RUN, level, "late", "the command did not end in time", end.seconds)
    words = end.output[-500:]
    if end.status == 0:
        return ValidationResult(PASSED, level, "", "", end.seconds)
    if end.status == COMMAND_FAILED:
        return ValidationResult(FAILED, level, "command", words or "the command failed without output", end.seconds)
    reason = INTERRUPTED if end.status == -signal.SIGKILL else "command"
    return ValidationResult(COULD_NOT_RUN, level, reason, f"{_ended(end.status)}: {words}", end.seconds)


def _outcome(end: ChildEnd) -> tuple[ValidationVerdict, str, str]:
    if end.is_out_of_memory:
        return COULD_NOT_RUN, MEMORY, f"the test took too much memory in step {end.step}"
    if end.is_late:
        return FAILED, "hang", f"step {end.step} did not end in time"
    if end.verdict is not None and end.status == 0:
        return _printed(end.verdict)
    if end.status is None or -end.status in _FROM_OUTSIDE:
        return COULD_NOT_RUN, INTERRUPTED, f"the test was ended in step {end.step}"
    if end.status < 0:
        return FAILED, "crash", f"the library crashed in step {end.step} ({signal.Signals(-end.status).name})"
    return COULD_NOT_RUN, "not-started", f"{_ended(end.status)}: {end.output[-500:]}"


def _printed(verdict: Mapping[str, Any]) -> tuple[ValidationVerdict, str, str]:
    try:
        return ValidationVerdict(verdict["verdict"]), str(verdict["reason"]), str(verdict["detail"])
    except (KeyError, ValueError):
        return COULD_NOT_RUN, "not-started", "the test printed something that is not a verdict"


def _figures(verdict: Mapping[str, Any] | None) -> Mapping[str, int]:
    figures = (verdict or {}).get("figures")
    found = figures.items() if isinstance(figures, dict) else ()
    return {str(name): number for name, number in found if isinstance(number, int)}


def _ended(status: int | None) -> str:
    return "it did not end" if status is None else f"exit status {status}"
