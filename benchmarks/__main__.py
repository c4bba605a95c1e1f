"""Run the benchmarks: `python -m benchmarks [--only NAME] [--json FILE] [--quick]`."""

from __future__ import annotations

import argparse
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--only", choices=SUITES, help="run one suite")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON too")
    options = parser.parse_args()
    report = Report()
    for name, suite in SUITES.items():
        if options.only in {None, name}:
            print(f"measuring: {name}", flush=True)
            suite(report)
    print("\n" + report.table())
    if options.json:
        report.write(options.json)


if __name__ == "__main__":
    main()
