"""Rounds: every driver starts on one API server, and then they prepare and unprepare claims in turn."""

import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.side_by_side.driver import THEIRS, Driver
from dra_driver.base.wire import Wire
from dra_driver.kube.api import KubeApi
from dra_driver.simulator.plugin_watcher import ClaimRef, Plugin, Registrar

RESOURCES = "/apis/resource.k8s.io/v1"
_ROOT = Path(__file__).parents[2]


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
                driver.argv, stdout=log, stderr=log, env=os.environ | driver.environment, cwd=_ROOT
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
