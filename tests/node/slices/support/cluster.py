"""An embedded API server with one node, and publishers of what a test offers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dra_driver.kube.api import KubeApi
from dra_driver.kube.credentials import load_credentials
from dra_driver.kube.paths import SLICES
from dra_driver.node.devices.describing import Device
from dra_driver.node.devices.offering import KeptFields, Offering
from dra_driver.node.slices.pool_sync import WriteTimes
from dra_driver.node.slices.publisher import Publisher
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.registry import Registry
from dra_driver.simulator.shapes import bad_request
from tests.node.slices.support.slices import DRIVER, NODE
from tests.support.ports import free_port


class SetOffers:
    """Offers what a test sets; `in_use` are the devices that claims have."""

    def __init__(self) -> None:
        self.offering: Offering | None = None
        self.in_use: frozenset[str] = frozenset()
        self.asked: list[KeptFields] = []

    def current(self, keeps: KeptFields) -> Offering | None:
        self.asked.append(keeps)
        return self.offering and self.offering.for_server(keeps, in_use=self.in_use)


class OfferingPublisher(Publisher):
    """A publisher whose offers a test can change."""

    def __init__(self, api: KubeApi, offers: SetOffers, **options) -> None:
        super().__init__(api, node=NODE, driver=DRIVER, offers=offers, **options)
        self.offers = offers

    def offer(self, devices: Sequence[Device] = (), **more) -> None:
        """Offer these devices from now on."""
        self.offers.offering = Offering(tuple(devices), **more)
        self.publish_changes()

    def withdraw(self) -> None:
        """Have the pool deleted."""
        self.offers.offering = None
        self.publish_changes()

    def taint(self, **taints) -> None:
        """Offer the same devices with other taints."""
        assert self.offers.offering is not None
        self.offers.offering = replace(self.offers.offering, taints=taints)
        self.publish_changes()


class Cluster:
    """An embedded API server with one node, and publishers on it."""

    def __init__(self, folder, **options) -> None:
        self.server = EmbeddedApi(**options)
        self.server.start(free_port())
        self.make_node()
        self._config = str(self.server.write_kubeconfig(folder / "config", token_file=folder / "token"))
        self.publishers: list[OfferingPublisher] = []

    def make_node(self, name: str = NODE) -> dict:
        return self.server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})

    def api(self) -> KubeApi:
        return KubeApi(load_credentials(self._config))

    def publisher(self, offers: SetOffers | None = None) -> OfferingPublisher:
        publisher = OfferingPublisher(self.api(), offers or SetOffers(), times=WriteTimes(0.05, 0.5))
        self.publishers.append(publisher)
        publisher.start()
        return publisher

    def published(self, devices, **more) -> OfferingPublisher:
        publisher = self.publisher()
        publisher.offer(devices, **more)
        assert publisher.wait_published(60), publisher.status()
        return publisher

    def slices(self) -> list[dict]:
        return self.server.request("GET", SLICES)["items"]

    def specs(self) -> list[dict]:
        return [s["spec"] for s in self.slices()]

    def devices(self) -> dict[str, dict]:
        return {d["name"]: d for spec in self.specs() for d in spec.get("devices", ())}

    def device_names(self) -> list[str]:
        return sorted(d["name"] for spec in self.specs() for d in spec.get("devices", ()))

    def writes(self) -> list[str]:
        return [e.method for e in self.server.log.writes("resourceslices")]

    def wipe(self) -> None:
        """Delete all slices of the node, as a kubelet does that starts."""
        for stored in self.slices():
            self.server.request("DELETE", f"{SLICES}/{stored['metadata']['name']}")

    def close(self) -> None:
        for publisher in self.publishers:
            publisher.stop()
        self.server.stop()


def settled(seconds: float = 0.3) -> None:
    """Allow a publisher time to do what it should not do."""
    time.sleep(seconds)


def refuse_dry_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the API server refuse every dry run, as one does with a webhook that supports none."""
    create = Registry.create

    def no_dry_run(self, kind, namespace, wire, *, is_dry=False):
        if is_dry:
            raise bad_request("a webhook does not support dry run")
        return create(self, kind, namespace, wire, is_dry=is_dry)

    monkeypatch.setattr(Registry, "create", no_dry_run)
