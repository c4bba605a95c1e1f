"""Figures: the measured values, each next to its budget."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. `peer` is what another driver measured on a similar machine, in the same unit."""

    name: str
    value: float
    unit: str
    budget: float | None = None
    is_floor: bool = False  # the budget is a minimum (claims a second), not a maximum
    peer: str = ""

    @property
    def verdict(self) -> str:
        if self.budget is None:
            return ""
        ok = self.value >= self.budget if self.is_floor else self.value <= self.budget
        return "ok" if ok else "OVER"


@dataclass
class Report:
    """All figures of a run."""

    figures: list[Figure] = field(default_factory=list)

    def add(self, name: str, value: float, unit: str, **more: object) -> None:
        self.figures.append(Figure(name, value, unit, **more))  # type: ignore[arg-type]
        print(f"  {name}: {value:.3g} {unit}", flush=True)

    def table(self) -> str:
        rows = [("what", "measured", "budget", "", "peer")]
        for f in self.figures:
            sign = "≥" if f.is_floor else "≤"
            budget = "" if f.budget is None else f"{sign} {f.budget:g}"
            rows.append((f.name, f"{f.value:.4g} {f.unit}", budget, f.verdict, f.peer))
        widths = [max(len(r[i]) for r in rows) for i in range(5)]
        return "\n".join("  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows)

    def write(self, path: Path) -> None:
        machine = {"python": platform.python_version(), "machine": platform.machine()}
        body = [{**{s: getattr(f, s) for s in f.__slots__}, "verdict": f.verdict} for f in self.figures]
        path.write_text(json.dumps({"machine": machine, "figures": body}, indent=1))


def percentiles(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Return p50, p95 and p99 in milliseconds."""
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return cuts[49] * 1e3, cuts[94] * 1e3, cuts[98] * 1e3
