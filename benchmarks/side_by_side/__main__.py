"""Measure this driver beside the Go plugin, and print the table."""

import argparse
import os
import platform
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.real_api import real_api
from benchmarks.side_by_side.lineup import drivers
from benchmarks.side_by_side.rounds import Run
from benchmarks.side_by_side.table import table
from dra_driver.kube.api import KubeApi
from dra_driver.kube.credentials import load_credentials


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser("python -m benchmarks.side_by_side", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cycles", type=int, default=25, help="how often a round prepares, repeats and unprepares")
    parser.add_argument("--k8s", default="1.35")
    parser.add_argument("--only", action="append", default=[], help="words in the names of our drivers to measure")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="drab"))
    with ExitStack() as stack:
        stack.callback(_remove, folder)
        kubeconfig = stack.enter_context(real_api(options.k8s, folder))
        api = KubeApi(load_credentials(str(kubeconfig)))
        stack.callback(api.close)
        run = Run(api, options.rounds, options.cycles)
        everyone = drivers(folder, kubeconfig, options.only)
        for driver in everyone:
            stack.callback(driver.stop)
            run.start(driver)
            print(f"  {driver.name}: {len(driver.names)} devices after {driver.started:.2f} s", file=sys.stderr)
        run.measure(everyone)
        print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Kubernetes {options.k8s},")
        print(
            f"{options.rounds} rounds of {options.cycles} cycles; milliseconds (ratio to the Go plugin in the same run)"
        )
        print(table(everyone))


def _remove(folder: Path) -> None:
    for link in (*folder.glob("*/cdi"), *folder.glob("*/machine")):
        shutil.rmtree(link.resolve(), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
