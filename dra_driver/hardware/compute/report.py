"""The report of a compute program: one JSON object in each line of its output."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

PASSED, FAILED, COULD_NOT_RUN = "passed", "failed", "could-not-run"


def report_step(step: str) -> None:
    """Report that a step begins, so that a hang is attributed to it."""
    _write({"step": step})


def report_verdict(verdict: str, reason: str = "", detail: str = "", figures: Mapping[str, int] | None = None) -> None:
    """Report the verdict, which is the last line."""
    _write({"verdict": verdict, "reason": reason, "detail": detail[:500], "figures": dict(figures or {})})


def _write(line: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
