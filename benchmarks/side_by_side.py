"""Measure this driver beside a Go plugin on Kubernetes' own helper, in one run: `python -m benchmarks.side_by_side`.

One real API server (TLS, loopback) and one client that plays the kubelet over unix sockets serve all drivers; their
rounds alternate, so that a slow minute of the machine affects all of them. The Go plugin (lane/floor) does the least
that a driver on Kubernetes' helper has to do for a claim.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.real_api import real_api
from dra_driver.embedded.kubelet.plugin_calls import ClaimRef, Plugin, Registrar
from dra_driver.embedded.kubelet.pod_resources import EmbeddedPodResources
from dra_driver.kube import credentials
from dra_driver.kube.api import KubeApi
from dra_driver.model.wire import Wire
from lane.binaries import FLOOR
from lane.machines.nvml_machine import NvmlMachine

RESOURCES = "/apis/resource.k8s.io/v1"
OURS, THEIRS = "gpu.nvidia.com", "floor.example.com"
SHARING = """version: rules/v1
rules:
  - name: replicas
    match: {types: [gpu]}
    replicas: 4
"""


@dataclass
class Driver:
    """One driver of the run: how it is started, which devices are claimed, and what was measured (seconds)."""

    name: str
    driver: str
    argv: list[str]
    folder: Path
    devices: Callable[[list[Wire]], list[str]]
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    plugin: Plugin | None = None
    names: list[str] = field(default_factory=list)
    started: float = 0.0
    figures: dict[str, list[float]] = field(default_factory=dict)
    rss: list[float] = field(default_factory=list)
    cpu: float = 0.0
    cycles: int = 0
    kubelet: EmbeddedPodResources | None = None

    @property
    def node(self) -> str:
        return self.folder.name

    def cpu_seconds(self) -> float:
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        assert self.process is not None
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("no VmRSS")


def whole(devices: list[Wire]) -> list[str]:
    return [d["name"] for d in devices if d.get("attributes", {}).get("type", {}).get("string") != "mig"]


def standing(devices: list[Wire]) -> list[str]:
    return [d["name"] for d in devices if d["attributes"]["type"]["string"] == "mig"][:8]


def on_demand(devices: list[Wire]) -> list[str]:
    """Return the names of a placement of one profile on each GPU."""
    names = sorted(d["name"] for d in devices if d["name"].endswith("-mig-1g10gb-19-0"))
    return names[:8]


def drivers(folder: Path, kubeconfig: Path, only: Sequence[str]) -> list[Driver]:
    """Return the drivers of a run, the floor first."""
    profile = folder / "cut.yaml"
    _write_cut_profile(profile)
    sharing = folder / "sharing.yaml"
    sharing.write_text(SHARING)
    place = _Places(folder, kubeconfig)
    made = [place.floor()]
    ours = {
        "whole": ("simulated:dgx-h100", ["--mig", "static"], whole),
        "static partitions": (f"simulated:{profile}", ["--mig", "static"], standing),
        "partitions on demand": ("simulated:dgx-h100", ["--mig", "dynamic"], on_demand),
        "shares": ("simulated:dgx-h100", ["--mig", "static", "--sharing-config", str(sharing)], whole),
    }
    for name, (hardware, flags, devices) in ours.items():
        made.append(place.ours(f"ours {name}", hardware, flags, devices))
    for name, flags, devices in (
        ("whole, fake NVML", ["--mig", "static"], whole),
        ("on demand, fake NVML", ["--mig", "dynamic"], on_demand),
    ):
        driver = place.ours(f"ours {name}", "nvidia", flags, devices)
        machine = _uncut_machine(_in_memory(driver.folder / "machine"))
        driver.argv += machine.flags
        driver.environment = machine.environment
        made.append(driver)
    return [driver for driver in made if not only or driver is made[0] or any(word in driver.name for word in only)]


def _in_memory(place: Path) -> Path:
    """Make a folder in memory, with a link at `place`. What a GPU does costs no write to a disk."""
    place.symlink_to(Path(tempfile.mkdtemp(prefix="drab", dir="/dev/shm")))
    return place


def _uncut_machine(folder: Path) -> NvmlMachine:
    """Return eight whole GPUs over the fake library; the kernel lists every GPU instance that may be made of them."""
    machine = NvmlMachine(folder, cut=())
    for gpu in machine.state.gpus:
        for instance in range(1, 15):
            capability = 100 * (gpu.minor + 1) + 2 * instance
            machine.node.add_mig_capability(gpu.minor, instance, capability, {0: capability + 1})
    return machine


def _write_cut_profile(path: Path) -> None:
    gpus = [
        {
            "pci": f"0000:{index + 1:02x}:00.0",
            "pcieRoot": "pci0000:00",
            "numaNode": 0,
            "mig": [{"profile": "1g.10gb", "start": start} for start in range(7)],
        }
        for index in range(2)
    ]
    document = {
        "about": "two GPUs cut in seven for a measurement",
        "nodeName": "bench",
        "lookedUp": "2026-11-21",
        "sources": ["made up"],
        "driverVersion": "580.126.20",
        "cudaDriverVersion": "13.0",
        "gpuDefaults": {"model": "h100-sxm5-80gb", "nvlinkGroup": "nvswitch"},
        "gpus": gpus,
    }
    path.write_text(json.dumps(document))


@dataclass(frozen=True)
class _Places:
    """The separate node of each driver: its folders below one root, and the shared kubeconfig."""

    folder: Path
    kubeconfig: Path

    def _make(self, name: str) -> Path:
        place = self.folder / name.replace(",", "").replace(" ", "-").lower()
        for part in ("registry", "plugins"):
            (place / part).mkdir(parents=True)
        _in_memory(place / "cdi")  # /var/run/cdi is a tmpfs on a node
        return place

    def floor(self) -> Driver:
        place = self._make("floor")
        argv = [str(FLOOR.path / "floor"), "--node-name", place.name, "--kubeconfig", str(self.kubeconfig)]
        argv += ["--registry", f"{place}/registry", "--plugins", f"{place}/plugins", "--cdi", f"{place}/cdi"]
        return Driver("floor (Go)", THEIRS, argv, place, whole)

    def ours(self, name: str, hardware: str, flags: list[str], devices: Callable[[list[Wire]], list[str]]) -> Driver:
        place = self._make(name)
        argv = [sys.executable, "-m", "dra_driver", "agent", "--node-name", place.name, "--hardware", hardware]
        argv += ["--kubeconfig", str(self.kubeconfig), "--cdi-root", f"{place}/cdi"]
        argv += ["--metrics-address", "127.0.0.1:0", "--kubelet-registrar-directory-path", f"{place}/registry"]
        argv += ["--kubelet-plugins-directory-path", f"{place}/plugins", *flags]
        return Driver(name, OURS, argv, place, devices, kubelet=_kubelet(place))


def _kubelet(folder: Path) -> EmbeddedPodResources:
    """Answer as a kubelet without pods: this driver asks it at the start which claims are held."""
    made = EmbeddedPodResources(folder / "pod-resources/kubelet.sock", pods=list, allocatable=dict)
    made.start()
    return made


class Run:
    """All drivers of one run on one API server."""

    def __init__(self, api: KubeApi, rounds: int, per_round: int) -> None:
        self.api = api
        self.rounds, self.per_round = rounds, per_round

    def start(self, driver: Driver) -> None:
        """Start a driver and wait for its slices and its sockets."""
        self.api.request("POST", "/api/v1/nodes", body={"metadata": {"name": driver.node}})
        begun = time.monotonic()
        with (driver.folder / "log").open("wb") as log:
            driver.process = subprocess.Popen(
                driver.argv, stdout=log, stderr=log, env=os.environ | driver.environment, cwd=Path(__file__).parents[1]
            )
        devices = self._devices(driver, begun)
        driver.started = time.monotonic() - begun
        driver.names = driver.devices(devices)
        deadline = time.monotonic() + 20
        while not (sockets := list((driver.folder / "registry").glob("*.sock"))):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{driver.name}: no registration socket")
            time.sleep(0.01)
        registrar = Registrar(sockets[0])
        info = registrar.get_info()
        registrar.notify()
        driver.plugin = Plugin(info.driver, Path(info.endpoint), "v1.DRAPlugin", sockets[0])
        time.sleep(1.0)
        driver.rss.append(driver.rss_mib())

    def _devices(self, driver: Driver, begun: float) -> list[Wire]:
        query = {"fieldSelector": f"spec.nodeName={driver.node}"}
        while True:
            slices = self.api.request("GET", f"{RESOURCES}/resourceslices", query=query)["items"]
            wanted = max((s["spec"]["pool"]["resourceSliceCount"] for s in slices), default=0)
            if slices and len(slices) >= wanted:
                return [d for s in slices for d in s["spec"].get("devices", ())]
            if time.monotonic() - begun > 30 or (driver.process and driver.process.poll() is not None):
                raise RuntimeError(f"{driver.name}: {(driver.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.01)

    def claim(self, driver: Driver, device: str) -> ClaimRef:
        """Create a claim that is allocated to a device."""
        name = f"claim-{uuid.uuid4().hex[:8]}"
        exactly = {"deviceClassName": driver.driver, "allocationMode": "ExactCount", "count": 1}
        path = f"{RESOURCES}/namespaces/default/resourceclaims"
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        }
        claim = self.api.request("POST", path, body=body)
        pool = driver.node if driver.driver == THEIRS else f"{driver.node}/{driver.driver}"
        result = {"request": "gpu", "driver": driver.driver, "pool": pool, "device": device}
        claim["status"] = {"allocation": {"devices": {"results": [result]}}}
        self.api.request("PUT", f"{path}/{name}/status", body=claim)
        return ClaimRef("default", name, claim["metadata"]["uid"])

    def cycles(self, driver: Driver) -> None:
        """Prepare, repeat and unprepare one claim after the other."""
        assert driver.plugin is not None
        claims = [self.claim(driver, driver.names[i % len(driver.names)]) for i in range(self.per_round)]
        before = driver.cpu_seconds()
        for claim in claims:
            for figure, call in (("prepare", _prepare), ("repeat", _prepare), ("unprepare", _unprepare)):
                driver.figures.setdefault(figure, []).append(_timed(call, driver.plugin, claim))
        driver.cpu += driver.cpu_seconds() - before
        driver.cycles += len(claims)
        self._delete(claims)

    def at_once(self, driver: Driver) -> None:
        """Prepare eight claims in eight simultaneous calls."""
        claims = [self.claim(driver, name) for name in driver.names[:8]]
        with ThreadPoolExecutor(8) as pool:
            each = list(pool.map(lambda claim: _timed(_prepare, driver.plugin, claim), claims))
        driver.figures.setdefault("8 at once", []).append(statistics.median(each))
        driver.figures.setdefault("8 at once, slowest", []).append(max(each))
        for claim in claims:
            _unprepare(driver.plugin, claim)
        self._delete(claims)

    def _delete(self, claims: Sequence[ClaimRef]) -> None:
        for claim in claims:
            self.api.request("DELETE", f"{RESOURCES}/namespaces/default/resourceclaims/{claim.name}")

    def measure(self, all_of_them: Sequence[Driver]) -> None:
        """Run the drivers' rounds alternately; the first round is a warm-up and is not counted."""
        for number in range(self.rounds + 1):
            for driver in all_of_them:
                self.cycles(driver)
                self.at_once(driver)
                if number == 0:
                    driver.figures.clear()
                    driver.cpu, driver.cycles = 0.0, 0
            print(f"  round {number} of {self.rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        for driver in all_of_them:
            driver.rss.append(driver.rss_mib())


def _prepare(plugin: Plugin | None, claim: ClaimRef) -> None:
    assert plugin is not None
    for answer in plugin.prepare([claim]).values():
        if isinstance(answer, str):
            raise RuntimeError(f"prepare failed: {answer}")


def _unprepare(plugin: Plugin | None, claim: ClaimRef) -> None:
    assert plugin is not None
    for answer in plugin.unprepare([claim]).values():
        if isinstance(answer, str) and answer:
            raise RuntimeError(f"unprepare failed: {answer}")


def _timed(work: Callable[..., object], *arguments: object) -> float:
    begun = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - begun


def table(all_of_them: Sequence[Driver]) -> str:
    """Return a table: milliseconds (and the ratio to the floor), MiB, CPU milliseconds per cycle."""
    head = ["driver", "prepare p50/p95", "repeat p50/p95", "unprepare p50/p95", "8 at once p50/slowest"]
    rows = [[*head, "start, s", "MiB start/end", "CPU a cycle"]]
    floor = all_of_them[0]
    for driver in all_of_them:
        cells = [driver.name]
        cells += [
            _ratio(_p50_p95(driver.figures[figure]), _p50_p95(floor.figures[figure]))
            for figure in ("prepare", "repeat", "unprepare")
        ]
        both = [statistics.median(driver.figures[figure]) * 1e3 for figure in ("8 at once", "8 at once, slowest")]
        least = [statistics.median(floor.figures[figure]) * 1e3 for figure in ("8 at once", "8 at once, slowest")]
        cells.append(_ratio(both, least))
        cells.append(f"{driver.started:.2f}")
        cells.append("/".join(f"{mib:.1f}" for mib in driver.rss))
        own, theirs = (each.cpu / each.cycles * 1e3 for each in (driver, floor))
        cells.append(f"{own:.1f} ({own / theirs:.2f})")
        rows.append(cells)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _p50_p95(seconds: Sequence[float]) -> list[float]:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return [cuts[49] * 1e3, cuts[94] * 1e3]


def _ratio(own: Sequence[float], floor: Sequence[float]) -> str:
    ratios = "/".join(f"{a / b:.2f}" for a, b in zip(own, floor, strict=True))
    return "/".join(f"{value:.1f}" for value in own) + f" ({ratios})"


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cycles", type=int, default=25, help="prepare, repeat, unprepare: so many times a round")
    parser.add_argument("--k8s", default="1.35")
    parser.add_argument("--only", action="append", default=[], help="words in the names of our drivers to measure")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="drab"))
    with ExitStack() as stack:
        stack.callback(_remove, folder)
        kubeconfig = stack.enter_context(real_api(options.k8s, folder))
        api = KubeApi(credentials.load(str(kubeconfig)))
        stack.callback(api.close)
        run = Run(api, options.rounds, options.cycles)
        everyone = drivers(folder, kubeconfig, options.only)
        for driver in everyone:
            stack.callback(_stop, driver)
            run.start(driver)
            print(f"  {driver.name}: {len(driver.names)} devices after {driver.started:.2f} s", file=sys.stderr)
        run.measure(everyone)
        print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Kubernetes {options.k8s},")
        print(f"{options.rounds} rounds of {options.cycles} cycles; milliseconds (ratio to the floor in the same run)")
        print(table(everyone))


def _stop(driver: Driver) -> None:
    if driver.process is not None:
        driver.process.terminate()
        driver.process.wait(20)
    if driver.kubelet is not None:
        driver.kubelet.stop()


def _remove(folder: Path) -> None:
    for link in (*folder.glob("*/cdi"), *folder.glob("*/machine")):
        shutil.rmtree(link.resolve(), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
