"""Table: what was measured, each driver beside the Go plugin."""

import statistics
from collections.abc import Sequence

from benchmarks.side_by_side.driver import Driver


def table(all_of_them: Sequence[Driver]) -> str:
    """Return a table: milliseconds (and the ratio to the Go plugin's), MiB, CPU milliseconds per cycle."""
    head = ["driver", "prepare p50/p95", "repeat p50/p95", "unprepare p50/p95", "8 at once p50/slowest"]
    rows = [[*head, "start, s", "MiB start/end", "CPU a cycle"]]
    floor = all_of_them[0]
    for driver in all_of_them:
        cells = [driver.name]
        cells += [
            _ratio(_p50_p95(driver.figures[figure]), _p50_p95(floor.figures[figure]))
            for figure in ("prepare", "repeat", "unprepare")
        ]
        both = [statistics.median(driver.figures[figure]) * 1e3 for figure in ("8 at once", "8 at once, slowest")]
        least = [statistics.median(floor.figures[figure]) * 1e3 for figure in ("8 at once", "8 at once, slowest")]
        cells.append(_ratio(both, least))
        cells.append(f"{driver.started:.2f}")
        cells.append("/".join(f"{mib:.1f}" for mib in driver.rss))
        own, theirs = (each.cpu / each.cycles * 1e3 for each in (driver, floor))
        cells.append(f"{own:.1f} ({own / theirs:.2f})")
        rows.append(cells)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _p50_p95(seconds: Sequence[float]) -> list[float]:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return [cuts[49] * 1e3, cuts[94] * 1e3]


def _ratio(own: Sequence[float], floor: Sequence[float]) -> str:
    ratios = "/".join(f"{a / b:.2f}" for a, b in zip(own, floor, strict=True))
    return "/".join(f"{value:.1f}" for value in own) + f" ({ratios})"
