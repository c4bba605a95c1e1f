"""Compute program: the program that tests a device, and its input.

The program writes one JSON object in each line of its output: `{"step": TEXT}` when it begins a step, and at the end
`{"verdict": "passed" | "failed" | "could-not-run", "reason": WORD, "detail": TEXT, "figures": {NAME: INTEGER}}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ComputeProgram:
    """A program of this package.

    `module` has a function `main(request)`, and imports nothing but the standard library and modules beside it.
    `environment` is its whole environment.
    """

    module: str
    request: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)
