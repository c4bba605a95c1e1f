"""Taking over from a driver that published other names. Not covered here: the agent process (tests/agent)."""

from pathlib import Path

import pytest

from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated import SimulatedHardware
from dra_driver.inventory.build import build_inventory
from dra_driver.plugin.foreign_claims import behind, held, holders, remove_leftover

DRIVER, NODE = "gpu.nvidia.com", "node-1"


def claim(*devices, pool=NODE, driver=DRIVER, **more):
    results = [{"driver": driver, "pool": pool, "device": name, "request": "r", **more} for name in devices]
    meta = {"namespace": "ns", "name": "c"}
    return {"metadata": meta, "status": {"allocation": {"devices": {"results": results}}}}


@pytest.fixture(scope="module")
def devices():
    hardware = SimulatedHardware("demo-h100", Roots(), node_name=NODE)
    return build_inventory(hardware.discover()).devices


def test_only_claims_from_the_other_drivers_pool_of_this_node_count():
    claims = [
        claim("gpu-0"),
        claim("gpu-1", pool="node-2"),
        claim("gpu-0000-1b-00-0", pool=f"{NODE}/{DRIVER}"),
        claim("gpu-2", driver="other.example.com"),
        claim("gpu-3", adminAccess=True),
        claim("gpu-vfio-4"),
        {"metadata": {"namespace": "ns", "name": "pending"}},
    ]
    assert list(held(claims, driver=DRIVER, node=NODE)) == [("gpu-0", "ns/c")]


def test_a_device_that_two_claims_hold_names_both():
    first, second = claim("gpu-0"), claim("gpu-0", "gpu-1")
    second["metadata"]["name"] = "d"
    found = holders([first, second], driver=DRIVER, node=NODE)
    assert found == {"gpu-0": "ns/c, ns/d", "gpu-1": "ns/d"}


def test_a_whole_gpu_stands_for_everything_of_it(devices):
    for minor in {device.gpu.minor for device in devices}:
        assert behind([f"gpu-{minor}"], devices) == {d.name for d in devices if d.gpu.minor == minor}


def test_a_partition_stands_for_itself_alone(devices):
    parts = [device for device in devices if device.partition]
    assert parts
    for part in parts:
        profile = part.partition.profile.replace(".", "").replace("+", "-")
        name = f"gpu-{part.gpu.minor}-mig-{profile}-{part.partition.gi_profile_id}-{part.partition.start}"
        whole = {d.name for d in devices if d.gpu.minor == part.gpu.minor and d.partition is None}
        assert behind([name], devices) == {part.name} | whole


def test_a_partition_that_is_not_there_stands_for_its_whole_gpu(devices):
    minor = devices[0].gpu.minor
    assert behind([f"gpu-{minor}-mig-1g10gb-19-99"], devices) == {d.name for d in devices if d.gpu.minor == minor}


def test_a_partition_in_the_names_of_older_releases_stands_for_itself_alone(devices):
    for part in (device for device in devices if device.partition):
        place = part.partition
        name = f"gpu-{part.gpu.minor}-mig-{place.gi_profile_id}-{place.start}-{place.size}"
        whole = {d.name for d in devices if d.gpu.minor == part.gpu.minor and d.partition is None}
        assert behind([name], devices) == {part.name} | whole


@pytest.mark.parametrize("rest", ["1g10gb", "1g10gb-2", "1g.10gb-0", "x", "9-4", "19-0-1-7", "", "1G10GB-19-2"])
def test_a_partition_in_a_format_that_nobody_knows_stands_for_its_whole_gpu_alone(devices, rest):
    minor = devices[0].gpu.minor
    assert behind([f"gpu-{minor}-mig-{rest}"], devices) == {d.name for d in devices if d.gpu.minor == minor}


def test_a_name_that_nobody_understands_stands_for_every_device(devices):
    assert behind(["what-is-this"], devices) == {device.name for device in devices}


def test_a_gpu_that_is_gone_stands_for_nothing(devices):
    assert behind(["gpu-77"], devices) == frozenset()


def test_the_other_drivers_cdi_file_is_removed_once(tmp_path: Path):
    (tmp_path / "k8s.gpu.nvidia.com-claim_1.yaml").touch()
    (tmp_path / "k8s.gpu.nvidia.com-claim_2.yaml").touch()
    assert remove_leftover(tmp_path, "k8s.gpu.nvidia.com-claim_1.json")
    assert not remove_leftover(tmp_path, "k8s.gpu.nvidia.com-claim_1.json")
    assert [path.name for path in tmp_path.iterdir()] == ["k8s.gpu.nvidia.com-claim_2.yaml"]
