"""Several vendors in one agent: memory, how one that hangs slows the others down, and the time from a crash to answers.

The node has 1 NVIDIA GPU (behind the stand-in for its library), 2 of AMD and 1 of Intel (trees of sysfs). Making their
device nodes needs root, and hanging a part of sysfs needs FUSE.
"""

from __future__ import annotations

import re
import statistics
import time
import urllib.request
from collections.abc import Sequence

from benchmarks.figures import Report, percentiles
from benchmarks.world import World, world
from dra_driver.base.wire import Wire
from dra_driver.simulator.plugin_watcher import ClaimRef, Plugin
from tests.support.nodes.fake_node import can_make_nodes
from tests.support.nodes.mixed_node import MixedNode, UnansweredFolder

DEVICES = {
    "gpu.nvidia.com": "gpu-0000-65-00-0",
    "gpu.amd.com": "gpu-0000-05-00-0",
    "gpu.intel.com": "gpu-0000-03-00-0",
}
PREPARES = 300
STARTS = 9


def run(report: Report) -> None:
    """Measure everything about several vendors."""
    _idle(report)
    with world() as here:
        if not can_make_nodes(here.folder):
            print("  left out: making device nodes needs root", flush=True)
            return
    _memory(report)
    _frozen_library(report)
    _frozen_files(report)
    _crash(report)


def _idle(report: Report) -> None:
    """Measure an agent of all vendors on a node without a GPU, after its page was read."""
    with world() as here:
        empty = here.folder / "empty"
        empty.mkdir()
        roots = [f"--{name}-root={empty}" for name in ("sysfs", "proc", "dev")]
        here.start_agent("auto", *roots, "--metrics-address=127.0.0.1:0")
        address = _page(here)
        for _ in range(20):
            urllib.request.urlopen(f"http://{address}/metrics", timeout=10).read()
        time.sleep(2.0)
        report.add("idle agent of all vendors, its page read", here.rss_mib(), "MiB", budget=25)


def _page(here: World) -> str:
    for _ in range(2000):
        if found := re.search(r"address=(127\.0\.0\.1:\d+)", (here.folder / "agent.log").read_text()):
            return found[1]
        time.sleep(0.005)
    raise RuntimeError((here.folder / "agent.log").read_text())


def _start(here: World, node: MixedNode, hardware: str, *flags: str) -> None:
    roots = node.roots
    places = f"--sysfs-root={roots.sys}", f"--proc-root={roots.proc}", f"--dev-root={roots.dev}"
    here.start_agent(hardware, *places, *flags, environment=node.environment)


def _memory(report: Report) -> None:
    """Measure what each further vendor adds."""
    before = 0.0
    for hardware in ("nvidia", "nvidia,amd", "nvidia,amd,intel"):
        found = []
        for _ in range(3):
            with world() as here:
                _start(here, MixedNode(here.folder), hardware, "--metrics-address=127.0.0.1:0")
                here.wait_for_slices({"nvidia": 1, "nvidia,amd": 3}.get(hardware, 4))
                time.sleep(3.0)
                found.append(here.rss_mib())
        now = statistics.median(found)
        report.add(f"memory of --hardware={hardware}", now, "MiB")
        if before:
            report.add(f"of it for {hardware.rpartition(',')[2]}", now - before, "MiB", budget=6)
        before = now


def _prepared(plugin: Plugin, claims: Sequence[Wire]) -> list[float]:
    """Return the seconds of each Prepare; each is undone."""
    seconds = []
    for claim in claims:
        meta = claim["metadata"]
        ref = ClaimRef(meta["namespace"], meta["name"], meta["uid"])
        started = time.perf_counter()
        (answer,) = plugin.prepare([ref]).values()
        seconds.append(time.perf_counter() - started)
        if isinstance(answer, str):
            raise RuntimeError(answer)
        plugin.unprepare([ref])
    return seconds


def _compare(report: Report, here: World, driver: str, name: str, freeze: object) -> None:
    """Measure Prepare of a driver before and after another vendor froze."""
    plugin = here.plugin(driver)
    claims = [here.allocated_claim(DEVICES[driver], driver=driver) for _ in range(PREPARES)]
    _prepared(plugin, claims[:20])
    usual = percentiles(_prepared(plugin, claims))
    freeze()  # type: ignore[operator]
    time.sleep(3.0)  # the next look at the hardware hangs by then
    frozen = percentiles(_prepared(plugin, claims))
    for label, before, after in zip(("p50", "p99"), (usual[0], usual[2]), (frozen[0], frozen[2]), strict=True):
        report.add(f"prepare of {driver} {label}", before, "ms")
        report.add(f"the same while {name} {label}", after, "ms", budget=10 if label == "p99" else None)


def _frozen_library(report: Report) -> None:
    with world() as here:
        node = MixedNode(here.folder)
        _start(here, node, "nvidia,amd,intel")
        here.wait_for_slices(4)
        _compare(report, here, "gpu.amd.com", "NVIDIA's library does not return", node.hang_nvidia)


def _frozen_files(report: Report) -> None:
    with world() as here:
        node = MixedNode(here.folder)
        _start(here, node, "nvidia,amd,intel")
        here.wait_for_slices(4)
        hanging = UnansweredFolder(node.folder / "sys/class/kfd")
        try:
            _compare(report, here, "gpu.intel.com", "AMD's files do not answer", hanging.__enter__)
        except OSError as error:
            print(f"  left out: {error}", flush=True)
            return
        finally:
            assert here.agent is not None
            here.agent.kill()
            here.agent.wait()
            here.agent = None
        hanging.__exit__()


def _crash(report: Report) -> None:
    """Measure from the start after a SIGKILL until every driver answers for the claims that it had prepared."""
    seconds, cpu = [], []
    with world() as here:
        node = MixedNode(here.folder)
        _start(here, node, "nvidia,amd,intel")
        here.wait_for_slices(4)
        refs = {}
        for driver, device in DEVICES.items():
            meta = here.allocated_claim(device, driver=driver)["metadata"]
            refs[driver] = ClaimRef(meta["namespace"], meta["name"], meta["uid"])
            here.plugin(driver).prepare([refs[driver]])
        for _ in range(STARTS):
            assert here.agent is not None
            here.agent.kill()
            here.agent.wait()
            for socket in (here.folder / "reg").glob("*.sock"):
                socket.unlink()
            _start(here, node, "nvidia,amd,intel")
            for driver, ref in refs.items():
                (answer,) = here.plugin(driver).prepare([ref]).values()
                if isinstance(answer, str):
                    raise RuntimeError(answer)
            seconds.append(time.monotonic() - here.started_at)
            cpu.append(here.cpu_seconds())
    report.add("killed agent: start to answers of three drivers", statistics.median(seconds), "s", budget=1)
    report.add("processor time of such a start", statistics.median(cpu), "s")
    report.add("the slowest of these starts", max(seconds), "s")
