"""Health of devices over a real socket, as a kubelet watches it."""

import threading
from contextlib import suppress
from functools import partial

import grpc
import pytest

from dra_driver.node._proto import dra_health_v1alpha1_pb2 as messages
from dra_driver.node.kubelet import methods
from dra_driver.node.kubelet.methods import HEALTH_VERSIONS, DeviceReport, DeviceState, HealthStream
from dra_driver.node.kubelet.server import PluginServer
from tests.node.support.kubelet import FakeKubelet
from tests.support.plugin.parts import DRIVER, Rig
from tests.support.waiting import until

FAULTY = DeviceReport("node/pool", "gpu-a", DeviceState.UNHEALTHY, "xid (95): " + "x" * 2000)
HEALTHY = DeviceReport("node/pool", "gpu-a", DeviceState.HEALTHY)


class Watched:
    def __init__(self, root):
        self.rig, self.found = Rig(root), (HEALTHY,)
        self.stream = HealthStream(self)
        folders = {"registrar_dir": root / "registry", "plugins_dir": root / "plugins"}
        self.server = PluginServer(driver=DRIVER, pod_uid="", preparer=self.rig.preparer, health=self.stream, **folders)
        self.server.start()
        self.info = FakeKubelet(root / "registry").register()
        self.channel = grpc.insecure_channel(f"unix:{self.info.endpoint}")

    def reports(self):
        return self.found

    def watch(self, service="v1alpha1.DRAResourceHealth"):
        call = self.channel.unary_stream(
            f"/{service}/NodeWatchResources",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=messages.NodeWatchResourcesResponse.FromString,
        )
        return call(messages.NodeWatchResourcesRequest(), timeout=60)


def answers(watched):
    """Return whether a new stream sends a list; it is refused until the plugin has read that another was cancelled."""
    lists = watched.watch()
    try:
        found = next(lists).devices
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise
        return False
    lists.cancel()
    return bool(found)


@pytest.fixture
def watched(short_path):
    watched = Watched(short_path)
    yield watched
    watched.channel.close()
    watched.server.stop(1.0)
    watched.rig.close()


@pytest.mark.parametrize("service", HEALTH_VERSIONS)
def test_the_whole_list_comes_at_once_and_on_a_change(watched, service):
    assert service in watched.info.supported_versions
    assert watched.info.supported_versions[0] == "v1.DRAPlugin"
    lists = watched.watch(service)
    (first,) = next(lists).devices
    assert (first.device.pool_name, first.device.device_name, first.health) == ("node/pool", "gpu-a", 1)
    assert first.health_check_timeout_seconds == 30
    watched.found = (FAULTY,)
    watched.stream.changed()
    (second,) = next(lists).devices
    assert (second.health, len(second.message)) == (2, 1024)
    lists.cancel()


def test_the_list_is_sent_again_without_a_change(watched, monkeypatch):
    monkeypatch.setattr(methods, "RESEND_SECONDS", 0.05)
    lists = watched.watch()
    assert [next(lists).devices[0].health for _ in range(3)] == [1, 1, 1]
    lists.cancel()


def test_streams_end_with_the_server_and_do_not_delay_it(watched):
    lists = watched.watch()
    next(lists)
    stopper = threading.Thread(target=watched.server.stop, args=(15.0,))
    stopper.start()
    with suppress(grpc.RpcError):
        list(lists)
    stopper.join(60)
    assert not stopper.is_alive()


def test_streams_above_the_limit_are_refused(watched):
    open_ones = [watched.watch() for _ in range(methods.STREAMS)]
    for lists in open_ones:
        next(lists)
    with pytest.raises(grpc.RpcError, match="4 health streams are open"):
        next(watched.watch())
    open_ones[0].cancel()
    until(partial(answers, watched), what="a stream in the place of the cancelled one")
    for lists in open_ones:
        lists.cancel()


def test_a_plugin_without_health_does_not_advertise_it(short_path):
    rig = Rig(short_path)
    folders = {"registrar_dir": short_path / "registry", "plugins_dir": short_path / "plugins"}
    server = PluginServer(driver=DRIVER, pod_uid="", preparer=rig.preparer, **folders)
    server.start()
    assert not set(HEALTH_VERSIONS) & set(FakeKubelet(short_path / "registry").register().supported_versions)
    server.stop(1.0)
    rig.close()
