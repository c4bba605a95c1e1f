"""Run the benchmarks: `python -m benchmarks [--only NAME] [--json FILE]`.

A suite that fails is named at the end, with status 1; the figures of the others are there all the same.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path

from benchmarks import agent, allocation, console, metering, nvml_calls, scale, selectors, tools, vendors
from benchmarks.figures import Report
from benchmarks.usage import suite as usage
from benchmarks.webhook import suite as webhook

SUITES = {
    "agent": agent.run,
    "metering": metering.run,
    "nvml": nvml_calls.run,
    "scale": scale.run,
    "selectors": selectors.run,
    "allocation": allocation.run,
    "tools": tools.run,
    "usage": usage.run,
    "webhook": webhook.run,
    "console": console.run,
    "vendors": vendors.run,
}


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--only", choices=SUITES, help="run one suite")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON too")
    options = parser.parse_args()
    report = Report()
    failed = []
    for name, suite in SUITES.items():
        if options.only in {None, name}:
            print(f"measuring: {name}", flush=True)
            try:
                suite(report)
            except Exception:  # noqa: BLE001  a fault of one suite loses no figure of the others
                traceback.print_exc()
                failed.append(name)
    print("\n" + report.table())
    if options.json:
        report.write(options.json)
    if failed:
        print(f"not measured to the end: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
