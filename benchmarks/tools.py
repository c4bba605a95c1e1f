"""The offline tools on 10,000 nodes: whole processes, wall time and peak memory.

The nodes come from a simulated fleet, and from equal ResourceSlices in JSON (200 MB) and in YAML (90 MB) as kubectl
writes them, in a file and on standard input.
A live cluster of as many nodes: `python -m benchmarks.live_cluster`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from benchmarks.figures import Report
from benchmarks.program_run import run_program
from dra_driver.tools.world.world import World, add_profiles

NODES, PROFILE = 10_000, "dgx-h100"
SIMULATED_SECONDS, FILE_SECONDS, MEBIBYTES = 6.0, 20.0, 800.0
PODS = 1_000
EXPRESSION = 'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"'
_SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}]}}


def run(report: Report) -> None:
    """Measure each command on each source."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        claim, claims, slices = folder / "claim.json", folder / "claims.json", folder / "slices.json"
        claim.write_text(json.dumps(_claim("one")))
        claims.write_text(json.dumps({"kind": "List", "items": [_claim(f"c-{n}") for n in range(PODS)]}))
        fleet = ["--fleet", f"{PROFILE}={NODES}"]
        for label, arguments in _commands(claim, fleet):
            _measure(report, f"{label}, {NODES:,} nodes x 8 GPUs, simulated", arguments, SIMULATED_SECONDS)
        many = ["simulate", "-f", str(claims), "--fleet", f"{PROFILE}={PODS}"]
        _measure(report, f"simulate {PODS:,} claims of 2 GPUs on {PODS:,} nodes", many, None)
        write_slices(slices)
        write_yaml(slices.with_suffix(".yaml"))
        for source in (slices, slices.with_suffix(".yaml")):
            about = f"{source.stat().st_size >> 20} MiB of {'JSON' if source == slices else 'YAML'}"
            for label, arguments in _commands(claim, ["-f", str(source)]):
                _measure(report, f"{label}, the same from {about}", arguments, FILE_SECONDS)
            with source.open("rb") as file:
                label, arguments = f"slices, {about} on standard input", ["slices", "-f", "-"]
                _measure(report, label, arguments, FILE_SECONDS, file)


def _commands(claim: Path, source: list[str]) -> Iterator[tuple[str, list[str]]]:
    yield "explain", ["explain", "claim", "one", "-f", str(claim), *source]
    yield "simulate one claim", ["simulate", "-f", str(claim), *source]
    yield "slices", ["slices", *source]
    yield "cel test", ["cel", "test", "-e", EXPRESSION, *(source if source[0] == "--fleet" else source[1:])]


def _claim(name: str) -> dict[str, Any]:
    return {"kind": "ResourceClaim", "metadata": {"name": name, "namespace": "default"}, "spec": _SPEC}


def write_slices(path: Path) -> None:
    """Write the slices of all nodes, one after the other."""
    world = World()
    add_profiles(world, [f"{PROFILE}={NODES}"])
    with path.open("w") as file:
        file.write('{\n    "apiVersion": "v1",\n    "items": [\n')
        for number, wire in enumerate(world.of("ResourceSlice")):
            spec = {**wire["spec"], "devices": list(wire["spec"]["devices"])}
            file.write(",\n" * bool(number) + json.dumps({**wire, "spec": spec}, indent=4))
        file.write('],\n    "kind": "List"\n}\n')


def write_yaml(path: Path) -> None:
    """Write the same slices in YAML, one after the other. One is dumped; the others differ in their names and UUIDs."""
    world = World()
    add_profiles(world, [f"{PROFILE}={NODES}"])
    with path.open("w") as file:
        file.write("apiVersion: v1\nitems:\n")
        text, first = "", ""
        for wire in world.of("ResourceSlice"):
            devices, node = list(wire["spec"]["devices"]), wire["spec"]["nodeName"]
            if not text:
                plain = json.loads(json.dumps([{**wire, "spec": {**wire["spec"], "devices": devices}}]))
                text, first, own = yaml.dump(plain, Dumper=yaml.CSafeDumper), node, list(_uuids(devices))
            made = text.replace(first, node)
            for old, new in zip(own, _uuids(devices), strict=True):
                made = made.replace(old, new)
            file.write(made)
        file.write('kind: List\nmetadata:\n  resourceVersion: ""\n')


def _uuids(devices: list[Any]) -> Iterator[str]:
    for device in devices:
        yield next(value["string"] for name, value in device["attributes"].items() if name.endswith("uuid"))


def _measure(
    report: Report, label: str, arguments: list[str], seconds: float | None, stdin: BinaryIO | None = None
) -> None:
    run = run_program([sys.executable, "-m", "dra_driver", *arguments], stdin)
    if run.status:
        raise RuntimeError(f"{label}: status {run.status}")
    report.add(label, run.seconds, "s", budget=seconds)
    report.add(f"{label}, peak memory", run.peak_mib, "MiB", budget=MEBIBYTES)
