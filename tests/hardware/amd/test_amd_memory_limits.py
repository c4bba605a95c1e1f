"""Limits of memory on AMD's GPUs by the kernel's dmem controller, on a tree of cgroups laid out as the kernel's."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.base.errors import HardwareError
from dra_driver.base.wire import SharedDevice, ShareMode
from dra_driver.hardware import sysfs
from dra_driver.hardware.amd.hardware import AmdHardware
from dra_driver.hardware.port import MemoryLimiting, MemoryLimitShowing
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.rules import DeviceMatch, SharingRule, SharingRules
from tests.support.nodes.amd_tree import AmdCard, AmdTree
from tests.support.nodes.dmem_tree import VRAM, DmemTree, serve

CARD = AmdCard("0000:05:00.0", memory_bytes=192 << 30)
UID = "3ad3a3f5-4b5e-4f9b-9f5e-0d8a1c2b3e01"
GPU = SharedDevice("gpu-0000-05-00-0", "93bb3629c01aea1c", 128, CARD.address)
GIB = 1 << 30
HARD = SharingRules((SharingRule("r", DeviceMatch(vendors=("amd",)), ShareMode.REPLICAS, 4, is_hard=True),))


@pytest.fixture
def tree(tmp_path: Path) -> AmdTree:
    return AmdTree(tmp_path).write(CARD)


@pytest.fixture
def cgroups(tree: AmdTree, monkeypatch: pytest.MonkeyPatch) -> DmemTree:
    made = DmemTree(Path(tree.roots.sys), {VRAM: CARD.memory_bytes, "drm/0000:06:00.0/vram": GIB})
    serve(made, monkeypatch)
    return made


def test_a_limit_is_set_lowered_shown_and_removed(tree: AmdTree, cgroups: DmemTree) -> None:
    hardware, pod = AmdHardware(tree.roots), cgroups.pod(UID)
    assert isinstance(hardware, MemoryLimiting)
    assert isinstance(hardware, MemoryLimitShowing)
    for limit, written in ((20 * GIB, str(20 * GIB)), (5 * GIB, str(5 * GIB)), (None, "max")):
        hardware.limit_memory(GPU, str(pod), limit, 1.0)
        assert cgroups.limits(pod) == {VRAM: written, "drm/0000:06:00.0/vram": "max"}
        assert hardware.memory_limit(GPU, str(pod)) == limit


def test_every_cgroup_above_the_pod_passes_the_controller_on_and_the_pod_itself_does_not(
    tree: AmdTree, cgroups: DmemTree
) -> None:
    pod = cgroups.pod(UID)
    assert not (pod / "dmem.max").exists()
    AmdHardware(tree.roots).limit_memory(GPU, str(pod), GIB, 1.0)
    above = [folder for folder in pod.parents if (folder / "cgroup.subtree_control").exists()]
    assert [folder.name for folder in above] == ["kubepods-besteffort.slice", "kubepods.slice", "cgroup"]
    assert all("dmem" in (folder / "cgroup.subtree_control").read_text().split() for folder in above)
    assert (pod / "cgroup.subtree_control").read_text() == "cpu memory\n"


def test_a_cgroup_that_is_gone_has_nothing_to_be_limited(tree: AmdTree, cgroups: DmemTree) -> None:
    gone = cgroups.root / "kubepods.slice/gone"
    hardware = AmdHardware(tree.roots)
    hardware.limit_memory(GPU, str(gone), GIB, 1.0)
    hardware.limit_memory(GPU, str(gone), None, 1.0)
    assert hardware.memory_limit(GPU, str(gone)) is None
    assert not gone.exists()


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EROFS, "hardware.no-permission"),
        (errno.EACCES, "hardware.no-permission"),
        (errno.ENOENT, "hardware.memory-limit-unsupported"),
        (errno.EINVAL, "hardware.memory-limit-failed"),
        (errno.EBUSY, "hardware.memory-limit-failed"),
    ],
)
def test_a_write_that_the_kernel_refuses_is_an_error_with_a_code(
    tree: AmdTree, cgroups: DmemTree, monkeypatch: pytest.MonkeyPatch, number: int, code: str
) -> None:
    def refuse(_path: Path, _text: str) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(sysfs, "write_kernel_file", refuse)
    with pytest.raises(HardwareError) as refused:
        AmdHardware(tree.roots).limit_memory(GPU, str(cgroups.pod(UID)), GIB, 1.0)
    assert refused.value.code == code


def test_a_limit_that_the_kernel_did_not_adopt_is_an_error(
    tree: AmdTree, cgroups: DmemTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = cgroups.pod(UID)
    AmdHardware(tree.roots).limit_memory(GPU, str(pod), 2 * GIB, 1.0)
    monkeypatch.setattr(sysfs, "write_kernel_file", lambda *_: None)
    with pytest.raises(HardwareError, match="reads 2147483648 after 1073741824"):
        AmdHardware(tree.roots).limit_memory(GPU, str(pod), GIB, 1.0)


def enforcement(tree: AmdTree) -> tuple[set[str], set[str]]:
    inventory = build_inventory(AmdHardware(tree.roots).discover(), sharing=HARD)
    devices = inventory.offering.every()
    return (
        {str(device.attributes.get("enforcement")) for device in devices if device.share},
        {problem.code for problem in inventory.problems},
    )


def test_shares_are_hard_where_the_kernel_can_limit_them(tree: AmdTree, cgroups: DmemTree) -> None:
    assert cgroups.root.exists()
    assert enforcement(tree) == ({"hard"}, set())


@pytest.mark.parametrize("lacking", ["controller", "region", "integrated"])
def test_shares_are_not_hard_where_the_kernel_cannot_limit_them_and_that_is_a_problem(
    tmp_path: Path, lacking: str
) -> None:
    integrated = (
        {"bank_bytes": 16 * GIB, "host_bytes": 16 * GIB, "memory_bytes": GIB} if lacking == "integrated" else {}
    )
    tree = AmdTree(tmp_path).write(replace(CARD, **integrated))
    regions = {"drm/0000:99:00.0/vram" if lacking == "region" else VRAM: GIB}
    DmemTree(Path(tree.roots.sys), regions, has_dmem=lacking != "controller")
    assert enforcement(tree) == ({"none"}, {"inventory.share-not-hard"})


def test_a_divided_gpu_is_not_shared_and_that_is_a_problem(tmp_path: Path) -> None:
    tree = AmdTree(tmp_path).write(replace(CARD, modes=("DPX", "NPS1"), partitions=(128, 129)))
    inventory = build_inventory(AmdHardware(tree.roots).discover(), sharing=HARD)
    assert not any(device.share for device in inventory.offering.every())
    assert [problem.code for problem in inventory.problems] == ["inventory.share-unfit"]


def test_shares_carry_amds_names_and_no_rule_of_another_vendor_applies_to_them(
    tree: AmdTree, cgroups: DmemTree
) -> None:
    assert cgroups.root.exists()
    facts = AmdHardware(tree.roots).discover()
    (shared,) = build_inventory(facts, sharing=HARD).devices
    assert (shared.attributes["type"], shared.attributes["sharedBy"]) == ("amdgpu-share", "replicas")
    assert (shared.capacity["shares"], shared.policies["memory"].default) == (4, 48 * GIB)
    others = SharingRules((SharingRule("r", DeviceMatch(), ShareMode.REPLICAS, 4),))
    (whole,) = build_inventory(facts, sharing=others).devices
    assert (whole.attributes["type"], whole.share) == ("amdgpu", None)


def test_the_fingerprint_changes_when_limits_become_possible(tree: AmdTree) -> None:
    hardware = AmdHardware(tree.roots)
    before = hardware.fingerprint()
    DmemTree(Path(tree.roots.sys), {VRAM: GIB})
    assert hardware.fingerprint() != before
