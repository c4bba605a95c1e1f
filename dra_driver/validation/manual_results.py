"""Manual results: the results of `dra-driver validate`, passed to the agent of the node.

A result is a line in a file beside the health store; the agent that holds the node's role takes and removes the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dra_driver.validation.result import ValidationLevel, ValidationResult, ValidationVerdict

FILE_NAME = "validation-results"
MAX_BYTES = 1 << 20


class ResultsFile:
    """The results that the agent of one node has not taken yet."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    def add(self, uuid: str, result: ValidationResult) -> bool:
        """Add a conclusive result; return whether it was written."""
        line = {"uuid": uuid, "verdict": result.verdict, "level": int(result.level), "reason": result.reason}
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.write(fd, (json.dumps({**line, "detail": result.detail[:500]}) + "\n").encode())
            finally:
                os.close(fd)
        except OSError:
            return False
        return True

    def take(self) -> dict[str, ValidationResult]:
        """Remove the file, and return the newest result of each device by UUID."""
        taken = self._path.with_name(f"{FILE_NAME}.taken")
        try:
            os.replace(self._path, taken)  # noqa: PTH105 - faster, as this is called every second
            with taken.open("rb") as file:
                text = file.read(MAX_BYTES)
            taken.unlink()
        except OSError:
            return {}
        return dict(_results(text))


def _results(text: bytes) -> Iterator[tuple[str, ValidationResult]]:
    for line in text.splitlines():
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            wire = json.loads(line)
            level, verdict = ValidationLevel(wire["level"]), ValidationVerdict(wire["verdict"])
            yield str(wire["uuid"]), ValidationResult(verdict, level, str(wire["reason"]), str(wire["detail"]))
