"""The selector engine: compile, evaluate, group. One thread, no I/O.

`python -m benchmarks.selectors [--json FILE]` runs only this benchmark.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import Report
from dra_driver.selectors.evaluate.program import prepare_device
from dra_driver.selectors.grouping import DeviceGroups
from dra_driver.selectors.kubernetes import KubernetesEngine
from dra_driver.tools.cel.editing import SelectorEditor
from dra_driver.tools.world.fleet import fleet_of_profile, shipped_fleet
from dra_driver.tools.world.queries import SelectorInputs

DRIVER = "gpu.example.com"
_A = f'device.attributes["{DRIVER}"]'
SELECTORS = {
    "driver and type": (f'device.driver == "{DRIVER}" && {_A}.type == "gpu"', 1.0),
    "string, version, quantity": (
        (
            f'{_A}.productName == "NVIDIA H100 80GB HBM3" && {_A}.driverVersion.isGreaterThan(semver("550.0.0"))'
            f' && device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0'
        ),
        2.0,
    ),
    "bind, has, regex, optional": (
        (
            f'cel.bind(a, {_A}, has(a.productName) && a.productName.lowerAscii().matches("h100|h200")'
            ' && a[?"numaNode"].orValue(0) >= 0)'
        ),
        5.0,
    ),
}
PRODUCTS = ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "Tesla T4"]
DEVICES = 100_000
EDITOR_BUDGET_MS = 50.0
_LINK = 'device.attributes["gpu.nvidia.com"].nvlinkCount'
_EDITED = """apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: c}}
spec:
  selectors:
  - cel:
      expression: {}
"""
COMPILE_BUDGET_US, GROUP_BUDGET_US, FURTHER_BUDGET_US = 350.0, 4.0, 0.2


def run(report: Report) -> None:
    """Measure compiling, evaluating one device after the other, and evaluating by groups."""
    engine = KubernetesEngine("1.35")
    devices = [device(number) for number in range(DEVICES)]
    views = [
        prepare_device(one, DRIVER) for one in devices[:6000:3]
    ]  # devices of one product, so that every clause is evaluated
    report.add("convert a device", _best(lambda: prepare_device(devices[0], DRIVER), 5000), "us")
    for name, (text, budget) in SELECTORS.items():
        selector = engine.compile(text)
        report.add(
            f"compile, check, estimate: {name}",
            _best(partial(engine.compile, text), 100),
            "us",
            budget=COMPILE_BUDGET_US,
            peer="183 to 366 (Go)",
        )
        report.add(f"evaluate: {name}", _loop(selector.matches_view, views), "us", budget=budget, peer="9 to 10 (Go)")
        _grouped(report, name, selector, devices)
    _edited(report)


def _edited(report: Report) -> None:
    """Measure what an editor waits for after a change of a file with one selector: faults, names, and a hover."""
    for about, fleet in (("dgx-h100", fleet_of_profile("dgx-h100")), ("every shipped profile", shipped_fleet(35))):
        editor = SelectorEditor(SelectorInputs(fleet, [], "1.35", {}, "stored"))
        text = _EDITED.format(f'device.driver == "gpu.nvidia.com" && {_LINK} >= 12')
        index = text.index("nvlinkCount") + 4
        editor.complete(text, index)
        for what, action in (
            ("faults", partial(editor.faults, text, "c.yaml")),
            ("completion", partial(editor.complete, text, index)),
            ("hover", partial(editor.hover, text, index)),
        ):
            value = _best(action, 5) / 1000
            report.add(f"editor, {what} of one selector on {about}", value, "ms", budget=EDITOR_BUDGET_MS)


def device(number: int) -> dict[str, Any]:
    """Return a device of a large fleet with unique identifiers and few products."""
    return {
        "name": f"gpu-{number}",
        "attributes": {
            "type": {"string": "gpu"},
            "productName": {"string": PRODUCTS[number % 3]},
            "driverVersion": {"version": "580.65.6"},
            "cudaComputeCapability": {"version": "9.0.0"},
            "uuid": {"string": f"GPU-{number:08x}"},
            "index": {"int": number % 8},
            "numaNode": {"int": number % 2},
            "resource.kubernetes.io/pcieRoot": {"string": f"pci{number % 8:04x}:00"},
            "resource.kubernetes.io/pciBusID": {"string": f"{number:04x}:01:00.0"},
        },
        "capacity": {"memory": {"value": "80Gi"}},
    }


def _grouped(report: Report, name: str, selector: Any, devices: list[dict[str, Any]]) -> None:
    pairs = [(one, DRIVER) for one in devices]
    began = time.perf_counter()
    groups = DeviceGroups(pairs, selector.read_set)
    report.add(
        f"group by what is read: {name}",
        (time.perf_counter() - began) / DEVICES * 1e6,
        "us a device",
        budget=GROUP_BUDGET_US,
    )
    further = _best(lambda: groups.matches(selector), 5) / DEVICES
    report.add(f"each further selector: {name}", further, "us a device", budget=FURTHER_BUDGET_US)
    tracemalloc.start()
    held = DeviceGroups(pairs[:10_000], selector.read_set)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    report.add(f"memory of 10,000 devices in {len(held.views)} groups", size / 1024, "KiB")


def _best(action: Callable[[], object], times: int) -> float:
    """Return the best of five runs, in microseconds per action."""
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(times):
            action()
        best = min(best, (time.perf_counter() - began) / times)
    return best * 1e6


def _loop(evaluate: Callable[[Any], object], views: list[Any]) -> float:
    """Return the best of seven passes over many devices, in microseconds per device."""
    best = float("inf")
    for _ in range(7):
        began = time.perf_counter()
        for view in views:
            evaluate(view)
        best = min(best, (time.perf_counter() - began) / len(views))
    return best * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.selectors", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON too")
    options = parser.parse_args()
    report = Report()
    run(report)
    print(report.table())
    if options.json:
        report.write(options.json)


if __name__ == "__main__":
    main()
