"""The whole storm, or parts of it.

    python -m tests.storm OPERATIONS [SEED] [--partitions on-demand|declared]

Prints one JSON object for each node: what was done, and what was wrong. The exit status is 1 if anything was.
"""

from __future__ import annotations

import argparse
import json
import sys

from tests.storm.support import sandbox


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("operations", type=int)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--partitions", choices=("on-demand", "declared"), default="on-demand")
    parser.add_argument("--go-on", action="store_true", help="also when something was wrong")
    options = parser.parse_args()
    folder = sandbox.enter("tests.storm")
    from tests.storm.support.storm import Storm

    storm = Storm(
        folder, options.operations, options.seed, is_static=options.partitions == "declared", goes_on=options.go_on
    )
    report = storm.run()
    print(json.dumps(report, indent=1))
    return 1 if report["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
