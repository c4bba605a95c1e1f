"""Everything at once: whatever happens in whatever order, the pool ends as it was last offered, and stays so."""

import contextlib
import random
import time

import pytest

from dra_driver.base import errors
from dra_driver.kube.api import KubeApi
from dra_driver.kube.credentials import load_credentials
from dra_driver.kube.paths import SLICES
from dra_driver.node.slices.pool_sync import WriteTimes
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.shapes import ApiRefusal
from tests.node.slices.support.cluster import OfferingPublisher, SetOffers
from tests.node.slices.support.slices import NODE, gpu
from tests.support.waiting import until


class World:
    """One server, one publisher, and a random generator that decides what happens next."""

    def __init__(self, seed: int, folder) -> None:
        self.random = random.Random(seed)
        self.server = EmbeddedApi()
        self.server.start()
        self.server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        self.config = str(self.server.write_kubeconfig(folder / "config"))
        self.wanted = []
        self.publisher = self.start()

    def start(self) -> OfferingPublisher:
        publisher = OfferingPublisher(KubeApi(load_credentials(self.config)), SetOffers(), times=WriteTimes(0.05, 0.5))
        publisher.start()
        publisher.offer(self.wanted)
        return publisher

    def change_devices(self) -> None:
        self.wanted = [gpu(i, x=self.random.randint(0, 1)) for i in range(20) if self.random.random() < 0.7]
        self.publisher.offer(self.wanted)

    def wipe(self) -> None:
        for stored in self.slices():
            self._try("DELETE", stored)

    def delete_one(self) -> None:
        for stored in self.slices()[:1]:
            self._try("DELETE", stored)

    def empty_one(self) -> None:
        for stored in self.slices()[:1]:
            stored["spec"].pop("devices", None)
            self._try("PUT", stored)

    def refuse(self) -> None:
        status = self.random.choice([404, 409, 410, 429, 500, 503])
        self.server.faults.fail_next(status, count=self.random.randint(1, 2), contains="resourceslices")

    def restart(self) -> None:
        self.publisher.stop()
        self.publisher = self.start()

    def step(self) -> None:
        server = self.server
        likely = [self.change_devices] * 4
        rare = [self.wipe, self.delete_one, self.empty_one, self.refuse, self.restart]
        broken = [server.close_connections, server.drop_watches, server.expire_watches]
        self.random.choice([*likely, *rare, *broken])()
        time.sleep(self.random.choice([0, 0, 0.01, 0.05]))

    def slices(self) -> list[dict]:
        return self.server.request("GET", SLICES)["items"]

    def is_right(self) -> bool:
        specs = [s["spec"] for s in self.slices()]
        names = sorted(d["name"] for spec in specs for d in spec.get("devices", ()))
        pools = {(spec["pool"]["generation"], spec["pool"]["resourceSliceCount"]) for spec in specs}
        is_whole = len(pools) == 1 and next(iter(pools))[1] == len(specs)
        return is_whole and names == sorted(d.name for d in self.wanted) and self.publisher.status().is_published

    def _try(self, method: str, stored: dict) -> None:
        body = stored if method == "PUT" else None
        with contextlib.suppress(ApiRefusal):  # the publisher was faster
            self.server.request(method, f"{SLICES}/{stored['metadata']['name']}", body=body)


@pytest.mark.parametrize("seed", range(6))
def test_after_any_troubles_the_pool_is_as_last_offered(seed, tmp_path, monkeypatch):
    monkeypatch.setattr(errors, "SLICE_DEVICES_ADVANCED", 4)
    world = World(seed, tmp_path)
    try:
        for _ in range(15):
            world.step()
        until(world.is_right, what=f"{world.publisher.status()}")
        world.server.log.clear()
        time.sleep(0.2)
        assert world.is_right()
        assert world.server.log.writes() == []
    finally:
        world.publisher.stop()
        world.server.stop()
