"""What the kubelet reports about its pods, over a real socket: what is used of it, and what is not trusted."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from dra_driver.model.errors import NodeError
from dra_driver.plugin._proto.k8s.podresources.v1 import api_pb2 as messages
from dra_driver.plugin.node_claims import pod_resources
from dra_driver.plugin.node_claims.pod_resources import SERVICE, HeldDevice, PodClaim, PodResources

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

    def tells(self, *claims: messages.DynamicResource) -> PodResources:
        container = messages.ContainerResources(name="main", dynamic_resources=claims)
        pod = messages.PodResources(name="pod", namespace="ns", containers=[container])
        self.answer = messages.ListPodResourcesResponse(pod_resources=[pod]).SerializeToString()
        return PodResources(self.path, DRIVER)

    def stop(self) -> None:
        self._server.stop(0).wait()


@pytest.fixture
def kubelet():
    with tempfile.TemporaryDirectory(prefix="dra") as folder:
        it = Kubelet(Path(folder))
        yield it
        it.stop()


def claim(name="c", namespace="ns", *devices, driver=DRIVER, pool="node-1"):
    resources = [messages.ClaimResource(driver_name=driver, pool_name=pool, device_name=d) for d in devices]
    return messages.DynamicResource(claim_name=name, claim_namespace=namespace, claim_resources=resources)


def test_claims_come_with_the_devices_of_this_driver_alone(kubelet):
    told = kubelet.tells(
        claim("ours", "ns", "gpu-0", "gpu-1"),
        claim("ours", "ns", "gpu-1", "gpu-2"),  # of another container
        claim("nic", "ns", "Eth 0", driver="nic.example.com", pool="Rack 7"),
        claim("early", "other"),
    ).pods()
    assert told.pods == {("ns", "pod")}
    assert told.claims == {
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
def test_a_name_that_kubernetes_does_not_allow_spoils_the_answer(kubelet, wrong):
    told = kubelet.tells(claim("good", "ns", "gpu-0"), wrong)
    with pytest.raises(NodeError, match="not a valid Kubernetes name") as refused:
        told.pods()
    assert refused.value.code == pod_resources.CODE


def test_an_answer_has_a_size(kubelet):
    told = kubelet.tells()
    kubelet.answer = messages.ListPodResourcesResponse(
        pod_resources=[messages.PodResources(name="x" * 1_000) for _ in range(pod_resources.ANSWER_BYTES // 1_000 + 1)]
    ).SerializeToString()
    with pytest.raises(NodeError, match="RESOURCE_EXHAUSTED"):
        told.pods()
    kubelet.answer = messages.ListPodResourcesResponse(
        pod_resources=[messages.PodResources()] * (pod_resources.MAX_PODS + 1)
    ).SerializeToString()
    with pytest.raises(NodeError, match="5001 pods"):
        told.pods()


@pytest.mark.parametrize("answer", [b"\xff" * 40, b"\x0a\xff\xff\xff\xff\x0f"])
def test_an_answer_that_is_no_message_is_a_fault(kubelet, answer):
    told = kubelet.tells()
    kubelet.answer = answer
    with pytest.raises(NodeError, match="PodResources"):
        told.pods()


def test_a_kubelet_that_is_not_there_is_a_fault_and_one_that_comes_back_is_heard(kubelet):
    told = kubelet.tells(claim("c", "ns", "gpu-0"))
    aside = kubelet.path.with_suffix(".aside")
    kubelet.path.rename(aside)
    with pytest.raises(NodeError, match="mount <kubelet's folder>/pod-resources"):
        told.pods()
    aside.rename(kubelet.path)
    assert list(told.pods().claims) == [("ns", "c")]


def test_what_device_plugins_offer_is_counted_by_resource(kubelet):
    told = kubelet.tells()
    devices = [messages.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=[f"GPU-{i}"]) for i in range(8)]
    kubelet.answer = messages.AllocatableResourcesResponse(devices=devices).SerializeToString()
    assert told.allocatable() == {"nvidia.com/gpu": 8}
