"""Run all fuzzing cases: `python -m tests.tools.support.hostile [--cases N] [--seed N] [--serving | --no-serving]`.

It lists the cases that ended in a traceback, or did not end.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
from collections import Counter

from tests.tools.support.hostile.fuzz import Found, fuzz, fuzz_serving

BYTES = 4 << 30  # of address space


def run_all() -> int:
    """Run the cases that the arguments ask for, and print the bugs that were found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="spoiled objects and files")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-arguments", action="store_true", help="only spoiled objects and files")
    parser.add_argument("--share", type=float, default=1.0, help="of the cases of arguments and of whole files")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no more cases are started")
    parser.add_argument("--serving", action="store_true", help="only agent, mps, webhook and demo")
    parser.add_argument("--no-serving", action="store_true", help="all but agent, mps, webhook and demo")
    options = parser.parse_args()
    os.chdir(tempfile.gettempdir())
    os.environ.update(KUBECONFIG="", HOME="/nonexistent")
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, most))
    share = 0.0 if options.no_arguments else options.share
    found = Found()
    if not options.no_serving:
        fuzz_serving(found, options.cases, options.seed, share=share, seconds=options.seconds)
    if not options.serving:
        fuzz(found, options.cases, options.seed, share=share, seconds=options.seconds)
    seen = Counter("\n".join(said.split("\n  File ")[-1:])[:600] for _, said in found.bugs)
    for text, count in seen.most_common():
        example = next(case for case, said in found.bugs if text in said)
        print(f"== {count} times: {[one[:120] for one in example]}\n{text}")
    statuses = dict(found.statuses)
    print(f"{sum(statuses.values())} cases, statuses {statuses}, {len(found.bugs)} bugs of {len(seen)} kinds")
    return bool(found.bugs)


if __name__ == "__main__":
    sys.exit(run_all())
