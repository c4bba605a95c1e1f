"""Metering: what it costs the agent in memory and time, and how long a scrape takes, also while the hardware hangs."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
import uuid
from pathlib import Path

from benchmarks.figures import Report, percentiles
from benchmarks.world import NODE, World, world
from dra_driver.hardware.metered import Measure
from dra_driver.simulator.plugin_watcher import ClaimRef

IDLE_SECONDS = 30.0
SCRAPES = 100
MAX_SERIES = 2000
_OF_INSTANCE = (
    Measure.MEMORY_USED_BYTES,
    Measure.MEMORY_FREE_BYTES,
    Measure.GRAPHICS_RATIO,
    Measure.SM_RATIO,
    Measure.TENSOR_RATIO,
    Measure.DRAM_RATIO,
)
_RULES = "version: rules/v1\nrules: [{match: {types: [mig]}, replicas: 4, sharing: {strategy: TimeSlicing}}]\n"


def run(report: Report) -> None:
    """Measure all of it."""
    _off(report)
    _whole_gpus(report)
    _crowd(report)


def _off(report: Report) -> None:
    with world() as here:
        _start(here, _profile(here.folder, parts=0), "--telemetry=off")
        here.wait_for_slices()
        time.sleep(3.0)
        report.add("memory with health, telemetry off", here.rss_mib(), "MiB", budget=70)


def _whole_gpus(report: Report) -> None:
    with world() as here:
        port = _start(here, _profile(here.folder, parts=0), "--telemetry=full")
        here.wait_for_slices()
        _await_age(port)
        plugin = here.plugin()
        for name in _devices(here):
            claim = here.allocated_claim(name)
            meta = claim["metadata"]
            plugin.prepare([ClaimRef(meta["namespace"], meta["name"], meta["uid"])])
        cpu, started = here.cpu_seconds(), time.monotonic()
        time.sleep(IDLE_SECONDS)
        share = (here.cpu_seconds() - cpu) / (time.monotonic() - started) * 100
        report.add("idle agent with health and telemetry, 8 GPUs in use", share, "% of a core", budget=0.5)
        report.add("memory with health and telemetry, 8 GPUs in use", here.rss_mib(), "MiB", budget=70)
        report.add("series of 8 GPUs in use", _scrape(port)[1], "series", budget=MAX_SERIES)


def _crowd(report: Report) -> None:
    """Measure 8 GPUs with 7 partitions each, and 4 tenants on each partition."""
    with world("1.36") as here:
        path = _profile(here.folder, parts=7)
        (here.folder / "sharing.yaml").write_text(_RULES)
        sharing = f"--sharing-config={here.folder}/sharing.yaml"
        port = _start(here, path, "--telemetry=full", "--mig=static", sharing)
        here.wait_for_slices(56)
        _await_age(port)
        plugin = here.plugin()
        for name in _devices(here):
            for _ in range(4):
                claim = here.allocated_claim(name, shareID=str(uuid.uuid4()), consumedCapacity={"shares": "1"})
                meta = claim["metadata"]
                plugin.prepare([ClaimRef(meta["namespace"], meta["name"], meta["uid"])])
        time.sleep(3.0)
        seconds = [_scrape(port)[0] for _ in range(SCRAPES)]
        _, _, p99 = percentiles(seconds)
        report.add("scrape with 8 x 7 partitions x 4 tenants p99", p99, "ms", budget=50)
        report.add("series of 224 tenants", _scrape(port)[1], "series", budget=MAX_SERIES)
        report.add("memory with 224 tenants", here.rss_mib(), "MiB", budget=80)
        document = json.loads(path.read_text())
        document["gpuDefaults"]["health"] = {"hangs": True}
        (here.folder / "new").write_text(json.dumps(document))
        (here.folder / "new").replace(path)
        time.sleep(3.0)
        _, _, p99 = percentiles([_scrape(port)[0] for _ in range(SCRAPES)])
        report.add("the same while the hardware hangs p99", p99, "ms", budget=50)


def _profile(folder: Path, *, parts: int) -> Path:
    values: dict[str, object] = dict.fromkeys(Measure, 1)
    mig = {"mig": [{"profile": "1g.10gb", "start": start} for start in range(parts)]} if parts else {}
    processes = [{"pid": 1, "gi": gi, "memoryBytes": 1 << 30} for gi in range(1, parts + 1)]
    instance = dict.fromkeys(_OF_INSTANCE, 1)
    metering = {**values, "instance": instance, "processes": processes}
    document = {
        "about": "8 GPUs that measure everything", "nodeName": NODE, "driverVersion": "580.126.20",
        "gpuDefaults": {"model": "h100-sxm5-80gb", "metering": metering, **mig},
        "gpus": [{"pci": f"0000:{index + 1:02x}:00.0"} for index in range(8)],
    }  # fmt: skip
    path = folder / "profile.yaml"
    path.write_text(json.dumps(document))
    return path


def _start(here: World, profile: Path, *flags: str) -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    here.start_agent(f"simulated:{profile}", f"--metrics-address=127.0.0.1:{port}", *flags)
    return port


def _devices(here: World) -> list[str]:
    return [device["name"] for one in here.slices() for device in one["spec"]["devices"]]


def _scrape(port: int) -> tuple[float, int]:
    """Return the seconds that a scrape took, and the number of its samples."""
    started = time.perf_counter()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read()
    seconds = time.perf_counter() - started
    time.sleep(0.06)  # the same page is rendered at most 20 times a second
    return seconds, sum(not line.startswith(b"#") for line in text.splitlines())


def _await_age(port: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            if b"dra_telemetry_age_seconds{" in answer.read():
                return
        if time.monotonic() > deadline:
            raise RuntimeError("nothing was measured")
        time.sleep(0.1)
