"""What the kubelet reports about its pods, over a real socket: what is used of it, and what is not trusted."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from dra_driver.base.errors import NodeError
from dra_driver.node._proto import pod_resources_v1_pb2 as messages
from dra_driver.node.neighbours import pod_resources
from dra_driver.node.neighbours.pod_resources import SERVICE, HeldDevice, PodClaim, PodResources

DRIVER = "gpu.nvidia.com"


class Kubelet:
    """A server that answers with whatever bytes it is given."""

    def __init__(self, folder: Path) -> None:
        self.path, self.answer = folder / "kubelet.sock", b""
        self._server = grpc.server(ThreadPoolExecutor(1))
        method = grpc.unary_unary_rpc_method_handler(lambda _request, _context: self.answer)
        names = ("List", "GetAllocatableResources")
        handler = grpc.method_handlers_generic_handler(SERVICE, dict.fromkeys(names, method))
        self._server.add_generic_rpc_handlers((handler,))
        self._server.add_insecure_port(f"unix:{self.path}")
        self._server.start()

    def reporting(self, *claims: messages.DynamicResource) -> PodResources:
        container = messages.ContainerResources(name="main", dynamic_resources=claims)
        pod = messages.PodResources(name="pod", namespace="ns", containers=[container])
        self.answer = messages.ListPodResourcesResponse(pod_resources=[pod]).SerializeToString()
        return PodResources(self.path, DRIVER)

    def stop(self) -> None:
        self._server.stop(0).wait()


@pytest.fixture
def kubelet():
    with tempfile.TemporaryDirectory(prefix="dra") as folder:
        kubelet = Kubelet(Path(folder))
        yield kubelet
        kubelet.stop()


def claim(name="c", namespace="ns", *devices, driver=DRIVER, pool="node-1"):
    resources = [messages.ClaimResource(driver_name=driver, pool_name=pool, device_name=d) for d in devices]
    return messages.DynamicResource(claim_name=name, claim_namespace=namespace, claim_resources=resources)


def test_claims_come_with_the_devices_of_this_driver_alone(kubelet):
    found = kubelet.reporting(
        claim("ours", "ns", "gpu-0", "gpu-1"),
        claim("ours", "ns", "gpu-1", "gpu-2"),  # of another container
        claim("nic", "ns", "Eth 0", driver="nic.example.com", pool="Rack 7"),
        claim("early", "other"),
    ).pods()
    assert found.pods == {("ns", "pod")}
    assert found.claims == {
        ("ns", "ours"): PodClaim(tuple(HeldDevice("node-1", f"gpu-{i}") for i in range(3)), is_prepared=True),
        ("ns", "nic"): PodClaim((), is_prepared=True),
        ("other", "early"): PodClaim((), is_prepared=False),
    }


@pytest.mark.parametrize(
    "wrong",
    [
        claim("../../nodes", "ns", "gpu-0"),
        claim("c", "ns/../../../nodes", "gpu-0"),
        claim("", "ns", "gpu-0"),
        claim("c", "", "gpu-0"),
        claim("c" * 254, "ns", "gpu-0"),
        claim("c", "ns", "gpu-0\n"),
        claim("c", "ns", "gpu-0", pool="../x"),
        claim("c", "ns", "GPU 0"),
    ],
)
def test_a_name_that_kubernetes_does_not_allow_makes_the_whole_answer_an_error(kubelet, wrong):
    client = kubelet.reporting(claim("good", "ns", "gpu-0"), wrong)
    with pytest.raises(NodeError, match="not a valid Kubernetes name") as refused:
        client.pods()
    assert refused.value.code == pod_resources.CODE


def test_an_answer_that_is_too_large_is_an_error(kubelet):
    client = kubelet.reporting()
    kubelet.answer = messages.ListPodResourcesResponse(
        pod_resources=[messages.PodResources(name="x" * 1_000) for _ in range(pod_resources.ANSWER_BYTES // 1_000 + 1)]
    ).SerializeToString()
    with pytest.raises(NodeError, match="RESOURCE_EXHAUSTED"):
        client.pods()
    kubelet.answer = messages.ListPodResourcesResponse(
        pod_resources=[messages.PodResources()] * (pod_resources.MAX_PODS + 1)
    ).SerializeToString()
    with pytest.raises(NodeError, match="5001 pods"):
        client.pods()


@pytest.mark.parametrize("answer", [b"\xff" * 40, b"\x0a\xff\xff\xff\xff\x0f"])
def test_an_answer_that_is_not_a_message_is_an_error(kubelet, answer):
    client = kubelet.reporting()
    kubelet.answer = answer
    with pytest.raises(NodeError, match="PodResources"):
        client.pods()


def test_a_missing_kubelet_is_an_error_and_one_that_comes_back_is_asked_again(kubelet):
    client = kubelet.reporting(claim("c", "ns", "gpu-0"))
    aside = kubelet.path.with_suffix(".aside")
    kubelet.path.rename(aside)
    with pytest.raises(NodeError, match="mount <kubelet's folder>/pod-resources"):
        client.pods()
    aside.rename(kubelet.path)
    assert list(client.pods().claims) == [("ns", "c")]


def test_what_device_plugins_offer_is_counted_by_resource(kubelet):
    client = kubelet.reporting()
    devices = [messages.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=[f"GPU-{i}"]) for i in range(8)]
    kubelet.answer = messages.AllocatableResourcesResponse(devices=devices).SerializeToString()
    assert client.allocatable() == {"nvidia.com/gpu": 8}


PIECES = [b"\x0a\x00", b"\x0a\x02\x1a\x00", b"\x0a\x04\x1a\x02\x2a\x00"]  # pods, containers, claims without content


@pytest.mark.parametrize("piece", PIECES)
def test_an_answer_of_millions_of_empty_messages_is_refused_before_it_is_decoded(kubelet, piece, monkeypatch):
    resources = kubelet.reporting()
    kubelet.answer = piece * ((3 << 20) // len(piece))
    monkeypatch.setattr(messages.ListPodResourcesResponse, "FromString", pytest.fail)
    with pytest.raises(NodeError, match="more than 200000 fields"):
        resources.pods()


def test_a_long_answer_of_a_full_node_is_read(kubelet):
    resources = kubelet.reporting()
    claims = [claim(f"c{number}", "ns", "gpu-0") for number in range(20)]
    pods = [
        messages.PodResources(
            name=f"pod-{number}",
            namespace="ns",
            containers=[messages.ContainerResources(name="x" * 4000, dynamic_resources=claims)],
        )
        for number in range(500)
    ]
    kubelet.answer = messages.ListPodResourcesResponse(pod_resources=pods).SerializeToString()
    assert len(kubelet.answer) > pod_resources.SHORT_BYTES
    assert len(resources.pods().pods) == 500


@pytest.mark.parametrize("end", [b"\x0a", b"\x0a\x05ab", b"\x0b", b"\xff" * 12])
def test_a_long_answer_that_is_no_message_is_an_error(kubelet, end):
    resources = kubelet.reporting()
    kubelet.answer = b"\x0a\x82\x80\x48" + b"\x0a" + b"\xfe\xff\x47" + b"x" * 1179646 + end
    with pytest.raises(NodeError):
        resources.pods()
