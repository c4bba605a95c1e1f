"""No double allocation: an agent beside a device plugin. Not covered here: the real kubelet (cluster lane)."""

import socket
import threading
import urllib.request
from pathlib import Path

import pytest

from dra_driver.base.errors import ApiError, NodeError
from dra_driver.node.neighbours.device_plugin import DevicePluginWatch, allocatable_gpus, live_sockets, serving
from dra_driver.simulator.store import NODES, SLICES
from tests.support.agents.agent_process import NODE, stage
from tests.support.ports import free_port
from tests.support.waiting import until


@pytest.fixture
def folder():
    with stage() as it:  # short path: a socket's name is limited
        yield it.folder


def listening(path):
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    return server


@pytest.mark.parametrize(
    ("allocatable", "counts"),
    [
        ({"nvidia.com/gpu": "8"}, True),
        ({"nvidia.com/gpu": "0", "cpu": "4"}, False),
        ({"nvidia.com/gpu.shared": "80"}, True),
        ({"nvidia.com/mig-1g.10gb": 7}, True),
        ({"nvidia.com/mig-1g.10gb": "0"}, False),
        ({"amd.com/gpu": "8"}, False),
        ({}, False),
    ],
)
def test_a_device_plugin_is_recognised_by_the_allocatable_resources_of_the_node(allocatable, counts):
    node = {"status": {"allocatable": allocatable}}
    assert bool(allocatable_gpus(node)) is counts
    assert bool(serving(allocatable_gpus(node), Path("/nowhere"))) is counts


def test_a_node_without_a_status_has_no_plugin(tmp_path):
    assert serving({}, tmp_path) == ""


def test_a_socket_of_a_gpu_counts_while_a_process_listens_on_it(folder):
    plugin = folder / "nvidia-gpu.sock"
    with listening(plugin):
        assert live_sockets(folder) == [plugin]
    assert plugin.exists()
    assert live_sockets(folder) == []
    with listening(folder / "other.sock"):
        assert live_sockets(folder) == []


class Kubelet:
    """Reports the answers that it is made with, each one once and the last one for ever."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def allocatable(self):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


SILENT = Kubelet(NodeError("pod-resources", "no answer"))


class Api:
    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = threading.Semaphore(0)

    def get_node(self, name):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.asked.release()
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_nothing_is_known_before_the_api_server_has_answered_and_an_outage_changes_nothing(tmp_path):
    none, some = {"status": {}}, {"status": {"allocatable": {"nvidia.com/gpu": "1"}}}
    down = ApiError("unreachable", "down")
    api, said = Api(down, some, down, none), []
    watch = DevicePluginWatch(
        SILENT, api, node="n", folder=tmp_path, check_s=0.01, changed=lambda: said.append(watch.reason)
    )
    assert not watch.is_known
    watch.start()
    until(lambda: len(said) == 2, what="two changes")
    watch.stop()
    assert "nvidia.com/gpu: 1" in said[0]
    assert said[1] == ""


def test_the_api_server_is_not_asked_while_the_kubelet_answers(tmp_path):
    kubelet, said = Kubelet({"nvidia.com/gpu": 8, "cpu": 4}, {"nvidia.com/gpu": 8}, {"amd.com/gpu": 8}), []
    api = Api(AssertionError("asked"))
    watch = DevicePluginWatch(
        kubelet, api, node="n", folder=tmp_path, check_s=0.01, changed=lambda: said.append(watch.reason)
    )
    watch.start()
    until(lambda: len(said) == 2, what="two changes")
    watch.stop()
    assert said == ["a device plugin serves these GPUs (node allocatable nvidia.com/gpu: 8)", ""]
    assert not api.asked.acquire(blocking=False)


def test_an_agent_beside_a_device_plugin_publishes_an_empty_pool_and_says_why():
    port = free_port()
    with stage() as here:
        plugins = here.folder / "dp"
        plugins.mkdir()
        with listening(plugins / "nvidia-gpu.sock"):
            here.start(
                "simulated:t4",
                *("--device-plugins-directory-path", str(plugins)),
                *("--metrics-address", f"127.0.0.1:{port}"),
            )
            until(lambda: here.api.items(SLICES), what="a slice")
            assert here.devices() == []
            until(lambda: "no device is published" in here.log(), what="a line in the log")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
                assert 'dra_driver_problems{code="node.device-plugin"} 1.0' in page.read().decode()


def test_an_agent_that_ignores_device_plugins_publishes_beside_one():
    with stage() as here:
        node = here.api.get(NODES, NODE)
        node["status"] = {"allocatable": {"nvidia.com/gpu": "4"}}
        here.api.request("PUT", f"{NODES.path('', NODE)}/status", body=node)
        here.start("simulated:t4", "--device-plugin", "ignore")
        until(lambda: len(here.devices()) == 4, what="four devices")
