"""The generated messages are those of proto/, and speak the kubelet's wire format."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.node._proto import dra_health_v1alpha1_pb2 as health
from dra_driver.node._proto import dra_v1_pb2 as v1
from dra_driver.node._proto import dra_v1beta1_pb2 as v1beta1
from dra_driver.node._proto import plugin_registration_v1_pb2 as registration
from dra_driver.node._proto import pod_resources_v1_pb2 as pod_resources
from dra_driver.node.kubelet.methods import REGISTRATION_SERVICE, VERSIONS
from dra_driver.node.neighbours.pod_resources import SERVICE

ROOT = Path(__file__).parents[3]
GENERATED = ROOT / "dra_driver/node/_proto"

# Numbers and types of the kubelet's contract: field → (number, type, is repeated).
STRING, BOOL, MESSAGE, INT64, ENUM = 9, 8, 11, 3, 14
CONTRACT = {
    registration.PluginInfo: {"type": (1, STRING), "name": (2, STRING), "endpoint": (3, STRING)},
    registration.RegistrationStatus: {"plugin_registered": (1, BOOL), "error": (2, STRING)},
    v1.Claim: {"namespace": (1, STRING), "uid": (2, STRING), "name": (3, STRING)},
    v1.Device: {"pool_name": (2, STRING), "device_name": (3, STRING), "share_id": (5, STRING)},
    v1.NodePrepareResourceResponse: {"devices": (1, MESSAGE), "error": (2, STRING)},
    v1.NodeUnprepareResourceResponse: {"error": (1, STRING)},
    v1beta1.Device: {"pool_name": (2, STRING), "device_name": (3, STRING)},
    pod_resources.PodResources: {"name": (1, STRING), "namespace": (2, STRING)},
    pod_resources.ContainerResources: {"name": (1, STRING)},
    pod_resources.DynamicResource: {"claim_name": (2, STRING), "claim_namespace": (3, STRING)},
    pod_resources.ClaimResource: {
        "driver_name": (2, STRING),
        "pool_name": (3, STRING),
        "device_name": (4, STRING),
        "share_id": (5, STRING),
    },
    pod_resources.ContainerDevices: {"resource_name": (1, STRING)},
    health.DeviceHealth: {
        "device": (1, MESSAGE),
        "health": (2, ENUM),
        "last_updated_time": (3, INT64),
        "health_check_timeout_seconds": (4, INT64),
        "message": (5, STRING),
    },
}
REPEATED = {
    registration.PluginInfo: {"supported_versions": 4},
    v1.Device: {"request_names": 1, "cdi_device_ids": 4},
    v1beta1.Device: {"request_names": 1, "cdi_device_ids": 4},
    v1.NodePrepareResourcesRequest: {"claims": 1},
    v1.NodePrepareResourcesResponse: {"claims": 1},
    v1.NodeUnprepareResourcesResponse: {"claims": 1},
    health.NodeWatchResourcesResponse: {"devices": 1},
    pod_resources.ListPodResourcesResponse: {"pod_resources": 1},
    pod_resources.PodResources: {"containers": 3},
    pod_resources.ContainerResources: {"dynamic_resources": 5},
    pod_resources.DynamicResource: {"claim_resources": 4},
    pod_resources.AllocatableResourcesResponse: {"devices": 1},
    pod_resources.ContainerDevices: {"device_ids": 2},
}


def test_the_stubs_are_current() -> None:
    lines = (GENERATED / "SOURCES").read_text().splitlines()
    recorded = dict(reversed(line.split("  ")) for line in lines if not line.startswith("#"))
    found = [*(ROOT / "proto").glob("*.proto"), *GENERATED.glob("*_pb2.py*")]
    now = {str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}
    assert now == recorded, "run `make proto`"
    assert lines[0].removeprefix("# ") in (ROOT / "proto/generate.sh").read_text()


def test_generating_again_gives_the_same_stubs(tmp_path: Path) -> None:
    python = os.environ.get("PROTOC_PYTHON", sys.executable)
    probe = subprocess.run([python, "-c", "import grpc_tools"], check=False, capture_output=True)
    if probe.returncode:
        pytest.skip("needs PROTOC_PYTHON: an interpreter with the pinned grpcio-tools")
    sources = sorted(str(p.relative_to(ROOT / "proto")) for p in (ROOT / "proto").glob("*.proto"))
    command = [python, "-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", *sources]
    subprocess.run(command, check=True, cwd=ROOT / "proto")
    for path in tmp_path.glob("*_pb2.py*"):
        assert path.read_bytes() == (GENERATED / path.relative_to(tmp_path)).read_bytes()


def test_numbers_and_types_are_the_kubelets() -> None:
    for message, fields in CONTRACT.items():
        found = {f.name: (f.number, f.type) for f in message.DESCRIPTOR.fields if not f.is_repeated}
        repeated = {f.name for f in message.DESCRIPTOR.fields if f.is_repeated}
        assert {k: v for k, v in fields.items() if k not in repeated} == found
    for message, numbers in REPEATED.items():
        assert {f.name: f.number for f in message.DESCRIPTOR.fields if f.is_repeated} == numbers


def test_services_have_their_full_names() -> None:
    services = {
        service.full_name: [method.name for method in service.methods]
        for file in (registration, v1, v1beta1, health, pod_resources)
        for service in file.DESCRIPTOR.services_by_name.values()
    }
    assert set(VERSIONS.values()) | {REGISTRATION_SERVICE, SERVICE, "v1alpha1.DRAResourceHealth"} == set(services)
    for name in VERSIONS.values():
        assert services[name] == ["NodePrepareResources", "NodeUnprepareResources"]


def test_an_answer_is_written_as_the_kubelet_reads_it() -> None:
    """The expected bytes are written by hand: a tag is number << 3 | 2, and the length follows it."""
    device = v1.Device(request_names=["r"], pool_name="p", device_name="d", cdi_device_ids=["c"], share_id="s")
    assert device.SerializeToString() == b"\x0a\x01r\x12\x01p\x1a\x01d\x22\x01c\x2a\x01s"
    assert not v1.Device().HasField("share_id")
    assert v1beta1.Device.FromString(device.SerializeToString()).device_name == "d"
