"""Slices of a node whose driver has gone are deleted by the embedded kubelet."""

from __future__ import annotations

from dra_driver.simulator.kubelet import EmbeddedKubelet
from dra_driver.simulator.store import SLICES
from tests.simulator.support.kubelet_pods import DRIVER
from tests.support.api.embedded_client import slice_wire
from tests.support.plugin.stand_in_plugin import StandInPlugin
from tests.support.waiting import until


def put_slices(api):
    for name, node, driver in (("mine", "n1", DRIVER), ("other", "n1", "nic.example.com"), ("far", "n2", DRIVER)):
        api.request("POST", SLICES.path(), body=slice_wire(name, node=node, driver=driver))


def names(api):
    return {item["metadata"]["name"] for item in api.items(SLICES)}


def test_a_start_deletes_the_slices_of_the_node_and_no_others(kubelet, api):
    put_slices(api)
    kubelet.restart()
    assert names(api) == {"far"}


def test_a_start_may_leave_slices_alone(folder, api):
    put_slices(api)
    kubelet = EmbeddedKubelet(folder, api, node="n1", wipes_slices=False)
    kubelet.start()
    kubelet.stop()
    assert len(names(api)) == 3


def test_slices_of_a_driver_that_does_not_come_back_are_deleted(kubelet, plugin, api):
    until(lambda: DRIVER in kubelet._wiper._known_drivers)
    put_slices(api)
    plugin.stop()
    until(lambda: "mine" not in names(api))
    assert names(api) == {"other", "far"}


def test_slices_stay_when_the_driver_comes_back_in_time(folder, api):
    kubelet = EmbeddedKubelet(folder, api, node="n1", wipe_after_s=30)
    kubelet.start()
    plugin = StandInPlugin(folder).start()
    kubelet.wait_registered(DRIVER, 60)
    put_slices(api)
    plugin.deregister()
    until(lambda: not kubelet.plugins.plugins(DRIVER))
    plugin.register()
    kubelet.wait_registered(DRIVER, 60)
    assert "mine" in names(api)
    kubelet.stop()
    plugin.stop()
