"""Passing PCI functions to virtual machines on a real kernel: `python -m cluster.guest [--kernel FOLDER]`.

Boots a guest and runs `lane.guest.inside` there. Exits with 0 if every check held, or if no guest can be booted here
(which is printed); with 1 if a check did not hold.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from cluster.guest.boot import Obstacle, run_inside

REPOSITORY = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m cluster.guest", description=__doc__)
    parser.add_argument("--kernel", default="", help="folder with boot/ and lib/modules/ of a Debian kernel")
    parser.add_argument("--seconds", type=float, default=1500.0, help="how long the guest may take")
    parser.add_argument("--program", default="cluster.guest.inside", help="what runs inside")
    given = parser.parse_args()
    try:
        said = run_inside(given.program, given.kernel, python=sys.executable, folder=REPOSITORY, seconds=given.seconds)
    except Obstacle as obstacle:
        print(f"skipped: {obstacle}")
        return 0
    except subprocess.TimeoutExpired as late:
        print((late.stdout or b"").decode(errors="replace")[-4000:])
        return 1
    results = [line.partition("RESULT ")[2] for line in said.splitlines() if "RESULT " in line]
    if not results or results[-1].strip() == "{}":
        print(said[-8000:])
        return 1
    found = json.loads(results[-1])
    if any(found.values()):
        print(said[-8000:])
    for name, fault in found.items():
        print(f"{'held' if not fault else 'DID NOT HOLD'}: {name}{': ' + fault if fault else ''}")
    return 1 if any(found.values()) or not found else 0


if __name__ == "__main__":
    sys.exit(main())
