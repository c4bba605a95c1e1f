"""The whole storm (`make storm`), or one node of it.

    python -m tests.storm.support                               every node, one after the other: about an hour
    python -m tests.storm.support OPERATIONS [SEED] [OPTIONS]   one node, for as many operations

Prints one JSON object for each node: what was done, and what was wrong. The exit status is 1 if anything was wrong. The
same seed makes the same choices; at which moments the kernel runs whom, and kills whom, is different each time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.storm.support import sandbox

ADVERSITIES = ("none", "locked", "full", "descriptors", "blind", "clock", "api")
NODES, OPERATIONS = 12, 1000  # without anything else that goes wrong; then one node for each adversity
LEAST_OPERATIONS, LEAST_CONTENDING, LEAST_KILLS = 10_000, 0.30, 500


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storm.support")
    parser.add_argument("operations", type=int, nargs="?", default=0, help="of one node; without it, the whole storm")
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--partitions", choices=("on-demand", "declared"), default="on-demand")
    parser.add_argument("--adversity", choices=ADVERSITIES, default="none", help="what else goes wrong")
    parser.add_argument("--logs", type=Path, help="where to keep the logs of the agents if something was wrong")
    parser.add_argument("--go-on", action="store_true", help="also when something was wrong, and show each kind of it")
    options = parser.parse_args()
    return _one_node(options) if options.operations else _whole()


def _one_node(options: argparse.Namespace) -> int:
    folder = sandbox.enter("tests.storm.support")
    from tests.storm.support import storm
    from tests.storm.support.hands import adversities

    adversity = adversities.ADVERSITIES[options.adversity](options.seed + 3)
    is_static = options.partitions == "declared"
    node = storm.Storm(
        folder, options.operations, options.seed, is_static=is_static, adversity=adversity, goes_on=options.go_on
    )
    report = node.run()
    print(json.dumps(report, indent=1))
    for log in sorted(folder.glob("agent-*")) if report["wrong"] and options.logs else ():
        shutil.copy(log, options.logs)
    return 1 if report["wrong"] else 0


def _parts() -> Iterator[list[str]]:
    """Yield the arguments for each node. Partitions are declared on every other one."""
    kinds = ("on-demand", "declared")
    for number in range(NODES):
        yield [str(OPERATIONS), str(number + 1), "--partitions", kinds[number % 2]]
    for number, adversity in enumerate(ADVERSITIES[1:]):
        yield [str(OPERATIONS), str(number + 101), "--partitions", kinds[number % 2], "--adversity", adversity]


def _whole() -> int:
    sandbox.end_with_parent()
    began, reports, faults = time.monotonic(), [], []
    for words in _parts():
        command = [sys.executable, "-m", "tests.storm.support", *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        print(done.stdout, flush=True)
        reports.append(json.loads(done.stdout) if done.stdout.strip() else {"wrong": ["it gave no report"]})
        if done.returncode or reports[-1]["wrong"]:
            faults.append(f"wrong: {' '.join(['python', *command[1:]])}")
    faults += _too_little([one for one in reports if one.get("adversity") == "none"])
    print(
        f"{len(reports)} nodes in {(time.monotonic() - began) / 60:.0f} minutes: {'; '.join(faults) or 'nothing wrong'}"
    )
    return 1 if faults else 0


def _too_little(reports: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what these nodes did too little of."""
    operations = sum(one["operations"] for one in reports)
    contending = sum(one["contending"] for one in reports)
    kills = sum(one["kills"]["kills inside calls"] for one in reports)
    print(f"{operations} operations, {contending} contending for a device, {kills} kills inside calls")
    if operations < LEAST_OPERATIONS or contending < LEAST_CONTENDING * operations or kills < LEAST_KILLS:
        yield f"too little: {LEAST_OPERATIONS}, {LEAST_CONTENDING:.0%} and {LEAST_KILLS} are wanted"


if __name__ == "__main__":
    sys.exit(main())
