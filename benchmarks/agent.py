"""The agent: start, prepare, unprepare, memory, writes, idle cost."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.figures import Report, percentiles
from benchmarks.world import World, profile, world
from dra_driver.base.wire import Wire
from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated import SimulatedHardware
from dra_driver.simulator.plugin_watcher import ClaimRef, Plugin

ROUNDS = 500
MANY = 5000
IDLE_SECONDS = 20.0


def run(report: Report, *, many: int = MANY) -> None:
    """Measure everything about the agent."""
    _starts(report)
    with world() as here:
        here.start_agent("simulated:dgx-h100", "--metrics-address", "127.0.0.1:0", "--telemetry", "off")
        here.wait_for_slices()
        plugin = here.plugin()
        names = [d["name"] for s in here.slices() for d in s["spec"]["devices"]]
        report.add("memory at start", here.rss_mib(), "MiB", budget=70, peer="55 to 76 (NVIDIA), 42 to 45 (example)")
        _latencies(report, here, plugin, names)
        after_500 = here.rss_mib()
        report.add(f"memory after {ROUNDS} prepares", after_500, "MiB", budget=70)
        claim = here.allocated_claim(names[0])
        for _ in range(many - ROUNDS):
            _prepare(plugin, claim)
            plugin.unprepare([_ref(claim)])
        report.add(f"memory grown by {many} prepares", here.rss_mib() - after_500, "MiB", budget=2)
        _idle(report, here)
    _partitions(report)
    _at_once(report)
    _one_change(report)
    _no_gpu(report)


def _starts(report: Report) -> None:
    seconds = []
    for _ in range(5):
        with world() as here:
            here.start_agent("simulated:dgx-h100")
            seconds.append(here.wait_for_slices())
    report.add("start to first slice accepted", statistics.median(seconds), "s", budget=1, peer="1.2 (NVIDIA)")


def _latencies(report: Report, here: World, plugin: Plugin, names: Sequence[str]) -> None:
    claims = [here.allocated_claim(names[i % len(names)]) for i in range(ROUNDS)]
    prepare, repeat, unprepare, get = [], [], [], []
    for claim in claims:
        prepare.append(_timed(_prepare, plugin, claim))
        repeat.append(_timed(_prepare, plugin, claim))
        unprepare.append(_timed(plugin.unprepare, [_ref(claim)]))
        meta = claim["metadata"]
        get.append(_timed(here.api.get_claim, meta["namespace"], meta["name"]))
    api = statistics.median(get) * 1e3
    report.add("API GET of a claim alone p50", api, "ms")
    for name, seconds, budgets, peer in (
        ("prepare with the API GET", prepare, (2.5, None, 6), "4.3 / 6.7 (NVIDIA 500 qps), 5.5 / 7.7 (example)"),
        ("repeat prepare", repeat, (2.0, None, None), "2.3 (NVIDIA), 3.8 (example)"),
        ("unprepare", unprepare, (1.4, None, None), "1.5 (NVIDIA), 2.0 (example)"),
    ):
        for label, value, budget in zip(("p50", "p95", "p99"), percentiles(seconds), budgets, strict=True):
            report.add(f"{name} {label}", value, "ms", budget=budget, peer=peer if label == "p50" else "")
    report.add("prepare without the API GET p50", statistics.median(prepare) * 1e3 - api, "ms")


def _partitions(report: Report) -> None:
    """Measure the start with 208 overlapping devices, and claims of partitions that the simulator makes instantly."""
    seconds = []
    for _ in range(5):
        with world("1.36") as here:
            here.start_agent("simulated:dgx-h100")
            seconds.append(here.wait_for_slices(208))
    report.add("start to 208 devices in 9 slices accepted", statistics.median(seconds), "s", budget=1, peer="1.2")
    with world("1.36") as here:
        here.start_agent("simulated:dgx-h100")
        here.wait_for_slices(208)
        plugin = here.plugin()
        devices = [d for s in here.slices() for d in s["spec"].get("devices", ())]
        gpus = [d["name"] for d in devices if d["attributes"]["type"]["string"] == "gpu"]
        medians = []
        for name in (gpus[0], f"{gpus[0]}-mig-1g10gb-19-0"):
            keeper = here.allocated_claim(f"{gpus[0]}-mig-1g10gb-19-6") if "mig" in name else None
            if keeper:  # a claim that keeps MIG mode on, because switching it is the hardware's own time
                _prepare(plugin, keeper)
            each = []
            for _ in range(100):
                claim = here.allocated_claim(name)
                each.append(_timed(_prepare, plugin, claim))
                plugin.unprepare([_ref(claim)])
            medians.append(statistics.median(each) * 1e3)
        own = _cutting(here)
        report.add("prepare of a partition p50", medians[1], "ms", peer="8.3")
        report.add("the simulated hardware's part of it", own, "ms")
        report.add("a partition adds to that and a prepare", medians[1] - medians[0] - own, "ms", budget=2)
        report.add("memory with 208 devices", here.rss_mib(), "MiB", budget=57, peer="80 to 83")


def _cutting(here: World) -> float:
    """Return the milliseconds that the simulated hardware takes for what a prepare asks of it."""
    hardware = SimulatedHardware("dgx-h100", Roots(), node_name="bench", state_dir=here.folder)
    gpu = hardware.discover().gpus[0]
    hardware.set_mig_mode(gpu, True, 5)
    profile = next(p for p in gpu.mig_profiles if p.name == "1g.10gb")
    hardware.create_partition(gpu, profile, 6, 5)
    each = []
    for _ in range(50):
        started = time.perf_counter()
        hardware.partitions_now(gpu)  # before the intent is recorded
        hardware.partitions_now(gpu)  # under the GPU's lock
        made = hardware.create_partition(gpu, profile, 0, 5).facts
        hardware.device_edits(gpu, made)
        each.append((time.perf_counter() - started) * 1e3)
        hardware.destroy_partition(gpu, made.uuid, 5)
    return statistics.median(each)


def _at_once(report: Report) -> None:
    """Measure 64 and 8 claims in as many simultaneous RPCs, each on a device of its own."""
    with world() as here:
        rates, _, slowest = _rounds_at_once(here, f"simulated:{profile(here.folder, 64)}", 64, rounds=5)
        report.add("64 claims at once", statistics.median(rates), "claims/s", budget=300, is_floor=True)
        report.add("64 claims at once, slowest", statistics.median(slowest) * 1e3, "ms")
    with world() as here:
        _, medians, slowest = _rounds_at_once(here, "simulated:dgx-h100", 8, rounds=20)
        report.add("8 claims at once p50", statistics.median(medians) * 1e3, "ms", peer="213 (NVIDIA), 17 (example)")
        report.add("8 claims at once, slowest", statistics.median(slowest) * 1e3, "ms", peer="511, 29")


def _rounds_at_once(
    here: World, hardware: str, calls: int, *, rounds: int
) -> tuple[list[float], list[float], list[float]]:
    """Return, for each round, the claims per second, and the median and the slowest call in seconds."""
    here.start_agent(hardware)
    here.wait_for_slices()
    plugin = here.plugin()
    names = [d["name"] for s in here.slices() for d in s["spec"]["devices"]]
    rates, medians, slowest = [], [], []
    with ThreadPoolExecutor(calls) as pool:
        for _ in range(rounds):
            claims = [here.allocated_claim(name) for name in names]
            started = time.monotonic()
            each = list(pool.map(lambda claim: _timed(_prepare, plugin, claim), claims))
            rates.append(len(claims) / (time.monotonic() - started))
            medians.append(statistics.median(each))
            slowest.append(max(each))
            for claim in claims:
                plugin.unprepare([_ref(claim)])
    return rates, medians, slowest


def _one_change(report: Report) -> None:
    """Measure the API writes, and the time until they are done, when one GPU is lost."""
    with world() as here:
        path = profile(here.folder, 8)
        here.start_agent(f"simulated:{path}")
        here.wait_for_slices()
        before = here.slices()
        started = time.monotonic()
        profile(here.folder, 7)
        while (now := here.slices()) == before:
            time.sleep(0.01)
        report.add("GPU lost to slices right", time.monotonic() - started, "s", budget=5)
        time.sleep(1.0)  # a second write would have been made by now
        now = here.slices()
        writes = sum(s["metadata"]["generation"] for s in now) - sum(s["metadata"]["generation"] for s in before)
        report.add("API writes for one lost GPU", writes, "writes", budget=1)


def _idle(report: Report, here: World) -> None:
    revision = [s["metadata"]["resourceVersion"] for s in here.slices()]
    cpu, started = here.cpu_seconds(), time.monotonic()
    time.sleep(IDLE_SECONDS)
    share = (here.cpu_seconds() - cpu) / (time.monotonic() - started) * 100
    report.add("idle agent", share, "% of a core", budget=0.2)
    is_same = revision == [s["metadata"]["resourceVersion"] for s in here.slices()]
    report.add("slices written while idle", 0 if is_same else 1, "writes", budget=0)


def _no_gpu(report: Report) -> None:
    """Measure an agent on a node without a GPU and without claims."""
    with world() as here:
        empty = here.folder / "sys"
        empty.mkdir()
        here.start_agent("nvidia", "--sysfs-root", str(empty), "--proc-root", str(empty), "--dev-root", str(empty))
        time.sleep(2.0)
        report.add("memory of an agent without a GPU", here.rss_mib(), "MiB", budget=30)


def _ref(claim: Wire) -> ClaimRef:
    meta = claim["metadata"]
    return ClaimRef(meta["namespace"], meta["name"], meta["uid"])


def _prepare(plugin: Plugin, claim: Wire) -> None:
    for answer in plugin.prepare([_ref(claim)]).values():
        if isinstance(answer, str):
            raise RuntimeError(f"prepare failed: {answer}")


def _timed(work: Callable[..., object], *arguments: object) -> float:
    started = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - started
