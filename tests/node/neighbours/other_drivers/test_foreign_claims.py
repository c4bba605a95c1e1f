"""Taking over from a driver that published other names. Not covered here: the agent process (tests/node/daemon)."""

import threading
from pathlib import Path

import pytest

from dra_driver.base.errors import NodeError
from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated import SimulatedHardware
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.neighbours.allocations import (
    UNNAMED,
    ForeignClaims,
    read_leftovers,
    remove_leftover,
    resolve_names,
)
from tests.support.waiting import until

DRIVER, NODE = "gpu.nvidia.com", "node-1"
AWAY = NodeError("pod-resources", "no answer")


def claim(*devices, name="c", pool=NODE, driver=DRIVER, **more):
    results = [{"driver": driver, "pool": pool, "device": device, "request": "r", **more} for device in devices]
    meta = {"namespace": "ns", "name": name, "uid": f"uid-{name}"}
    return {"metadata": meta, "status": {"allocation": {"devices": {"results": results}}}}


def leave(folder: Path, uid: str, *devices: str, text: str = "") -> Path:
    """Write a CDI file as NVIDIA's driver does."""
    path = folder / f"k8s.{DRIVER}-claim_{uid}.yaml"
    entries = "".join(f"- containerEdits:\n    env:\n    - A=B\n  name: {uid}-{device}\n" for device in devices)
    path.write_text(text or f"cdiVersion: 0.5.0\nkind: k8s.{DRIVER}/claim\ndevices:\n{entries}")
    return path


class World:
    """Claims that the ledger does not know, and a folder of CDI files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.claims, self.ours, self.has_answered = folder, (), set(), True
        self.asked = threading.Semaphore(0)
        self.fresh: list[bool] = []
        self.changes = threading.Semaphore(0)
        self.foreign = ForeignClaims(
            self,
            folder,
            node=NODE,
            driver=DRIVER,
            ledger=self,
            changed=self.changes.release,
            check_s=0.01,
        )

    def get(self, uid):
        """Answer as the ledger would, which has the claims in `ours`."""
        return uid if uid in self.ours else None

    def unknown(self, *, is_fresh):
        self.asked.release()
        self.fresh.append(is_fresh)
        if isinstance(self.claims, Exception):
            raise self.claims
        return tuple(self.claims)

    def look(self) -> dict[str, str]:
        self.foreign._check()
        return {problem.subject: problem.message.removeprefix("held by claim ") for problem in self.foreign.problems()}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(scope="module")
def devices():
    hardware = SimulatedHardware("demo-h100", Roots(), node_name=NODE)
    return build_inventory(hardware.discover()).devices


def test_only_claims_from_the_other_drivers_pool_of_this_node_count(world):
    world.claims = [
        claim("gpu-0"),
        claim("gpu-1", pool="node-2"),
        claim("gpu-0000-1b-00-0", pool=f"{NODE}/{DRIVER}"),
        claim("gpu-2", driver="other.example.com"),
        claim("gpu-3", adminAccess=True),
        claim("gpu-vfio-4"),
        {"metadata": {"namespace": "ns", "name": "pending"}},
    ]
    assert world.look() == {"gpu-0": "ns/c"}


def test_a_device_that_two_claims_hold_names_both(world):
    world.claims = [claim("gpu-0"), claim("gpu-0", "gpu-1", name="d")]
    assert world.look() == {"gpu-0": "ns/c, ns/d", "gpu-1": "ns/d"}


def test_a_file_that_the_other_driver_left_holds_its_devices_whatever_the_kubelet_reports(world):
    """The kubelet may not report claims of init containers or of no container, or pods that are just starting."""
    leave(world.folder, "uid-x", "gpu-0", "gpu-1-mig-1g10gb-19-2")
    assert world.look() == dict.fromkeys(("gpu-0", "gpu-1-mig-1g10gb-19-2"), "(name unknown, UID uid-x)")


def test_a_file_of_a_claim_that_the_kubelet_reports_has_the_claims_name(world):
    leave(world.folder, "uid-c", "gpu-0")
    world.claims = [claim("gpu-0")]
    assert world.look() == {"gpu-0": "ns/c"}


def test_a_file_for_admin_access_or_passthrough_or_of_a_claim_of_ours_holds_nothing(world):
    leave(world.folder, "uid-c", "gpu-0")
    leave(world.folder, "uid-v", "gpu-vfio-3")
    leave(world.folder, "uid-ours", "gpu-4")
    (world.folder / f"k8s.{DRIVER}-claim_uid-z.json").write_text("{}")
    (world.folder / "k8s.other.example.com-claim_uid-z.yaml").write_text("name: uid-z-gpu-5")
    world.ours.add("uid-ours")
    world.claims = [claim("gpu-0", adminAccess=True)]
    assert world.look() == {}


def test_a_file_that_names_no_device_holds_every_device(world, devices):
    leave(world.folder, "uid-1", text="half a docu")
    assert set(world.look()) == {UNNAMED}
    assert world.foreign.offer(devices) == ()


def test_files_are_read_as_yaml_and_json_write_them_and_never_through_a_link_or_a_pipe(tmp_path):
    import os

    leave(tmp_path, "u1", text='{"devices":[{"name":"u1-gpu-0"},{"name": "u1-gpu-1","containerEdits":{}}]}')
    leave(tmp_path, "u2", text="devices:\n  - name: 'u2-gpu-2'\n  - {name: u2-gpu-3, containerEdits: {}}\n")
    secret = tmp_path / "secret"
    secret.write_text("name: u3-gpu-3")
    (tmp_path / f"k8s.{DRIVER}-claim_u3.yaml").symlink_to(secret)
    os.mkfifo(tmp_path / f"k8s.{DRIVER}-claim_u4.yaml")
    (tmp_path / f"k8s.{DRIVER}-claim_u5.yaml").mkdir()
    assert read_leftovers(tmp_path, DRIVER) == {
        "u1": ("gpu-0", "gpu-1"),
        "u2": ("gpu-2", "gpu-3"),
        "u3": (UNNAMED,),
        "u4": (UNNAMED,),
        "u5": (UNNAMED,),
    }
    assert read_leftovers(tmp_path / "nowhere", DRIVER) == {}


def test_nothing_is_known_before_the_first_answer_and_a_look_that_fails_changes_nothing(world):
    world.claims = AWAY
    world.foreign.start()
    for _ in range(3):
        assert world.asked.acquire(timeout=60)
    assert not world.foreign.is_known
    world.claims = [claim("gpu-0")]
    assert world.changes.acquire(timeout=60)
    assert world.foreign.is_known
    world.claims = AWAY
    for _ in range(3):
        assert world.asked.acquire(timeout=60)
    assert [problem.subject for problem in world.foreign.problems()] == ["gpu-0"]
    world.claims = []
    assert world.changes.acquire(timeout=60)
    assert world.foreign.problems() == ()
    world.foreign.stop()


def test_if_nothing_is_held_the_thread_looks_twice_and_again_when_another_driver_came_or_went(world):
    world.foreign.start()
    until(lambda: len(world.fresh) == 2, what="two looks")
    world.foreign.claim_ended()
    world.foreign.check_again()
    until(lambda: len(world.fresh) == 4, what="two more")
    world.foreign.stop()
    assert world.fresh == [True, False, True, False]


def test_the_thread_keeps_looking_until_the_kubelet_has_answered(world):
    world.has_answered = False
    world.foreign.start()
    until(lambda: len(world.fresh) > 5, what="many looks")
    world.foreign.stop()


def test_the_name_of_a_whole_gpu_means_all_of_its_devices(devices):
    for minor in {device.gpu.minor for device in devices}:
        assert resolve_names([f"gpu-{minor}"], devices) == {d.name for d in devices if d.gpu.minor == minor}


def test_the_name_of_a_partition_means_that_partition_and_the_whole_gpu(devices):
    parts = [device for device in devices if device.partition]
    assert parts
    for part in parts:
        profile = part.partition.profile.replace(".", "").replace("+", "-")
        name = f"gpu-{part.gpu.minor}-mig-{profile}-{part.partition.gi_profile_id}-{part.partition.start}"
        whole = {d.name for d in devices if d.gpu.minor == part.gpu.minor and d.partition is None}
        assert resolve_names([name], devices) == {part.name} | whole


def test_the_name_of_a_partition_that_is_not_there_means_all_devices_of_its_gpu(devices):
    minor = devices[0].gpu.minor
    assert resolve_names([f"gpu-{minor}-mig-1g10gb-19-99"], devices) == {
        d.name for d in devices if d.gpu.minor == minor
    }


def test_a_partitions_name_of_older_releases_means_that_partition_and_the_whole_gpu(devices):
    for part in (device for device in devices if device.partition):
        place = part.partition
        name = f"gpu-{part.gpu.minor}-mig-{place.gi_profile_id}-{place.start}-{place.size}"
        whole = {d.name for d in devices if d.gpu.minor == part.gpu.minor and d.partition is None}
        assert resolve_names([name], devices) == {part.name} | whole


@pytest.mark.parametrize("rest", ["1g10gb", "1g10gb-2", "1g.10gb-0", "x", "9-4", "19-0-1-7", "", "1G10GB-19-2"])
def test_a_partitions_name_in_an_unknown_format_means_all_devices_of_its_gpu(devices, rest):
    minor = devices[0].gpu.minor
    assert resolve_names([f"gpu-{minor}-mig-{rest}"], devices) == {d.name for d in devices if d.gpu.minor == minor}


def test_an_unknown_name_means_every_device(devices):
    assert resolve_names(["what-is-this"], devices) == {device.name for device in devices}


def test_the_name_of_a_gpu_that_is_gone_means_no_device(devices):
    assert resolve_names(["gpu-77"], devices) == frozenset()


def test_the_other_drivers_cdi_file_is_removed_once(tmp_path: Path):
    (tmp_path / "k8s.gpu.nvidia.com-claim_1.yaml").touch()
    (tmp_path / "k8s.gpu.nvidia.com-claim_2.yaml").touch()
    assert remove_leftover(tmp_path, "k8s.gpu.nvidia.com-claim_1.json")
    assert not remove_leftover(tmp_path, "k8s.gpu.nvidia.com-claim_1.json")
    assert [path.name for path in tmp_path.iterdir()] == ["k8s.gpu.nvidia.com-claim_2.yaml"]
