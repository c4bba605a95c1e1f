"""Functions that go along with a GPU to a virtual machine: they are not taken from the host while it uses them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_driver.base.errors import HardwareError
from dra_driver.hardware.driver_binding import read_attached_devices
from tests.node.passthrough.support.bus import AUDIO, BEFORE, DURING, GPU, PASSED, PassthroughRig

ZERO = "1:5"  # the numbers of /dev/zero, which is there on every machine


@pytest.fixture
def rig(tmp_path: Path):
    rig = PassthroughRig(tmp_path)
    rig.allocate("u1", PASSED)
    yield rig
    rig.close()


def put(rig: PassthroughRig, address: str, path: str, text: str) -> None:
    file = Path(rig.roots.sys, "bus/pci/devices", address, path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")


def open_zero(rig: PassthroughRig, pid: int, command: str) -> None:
    rig.open_node(pid, "some-file", command)
    link = rig.root / f"proc/{pid}/fd/3"
    link.unlink()
    link.symlink_to("/dev/zero")


def refusal(rig: PassthroughRig) -> str:
    with pytest.raises(HardwareError) as refused:
        rig.prepare("u1", seconds=2)
    assert refused.value.code == "hardware.gpu-in-use"
    assert rig.drivers() == BEFORE
    return refused.value.message


@pytest.mark.parametrize(
    ("path", "program"),
    [
        ("sound/card1/controlC1/dev", "pipewire"),
        ("usb3/3-1/3-1:1.0/0003:046D:C31C.0001/input/input9/event9/dev", "Xorg"),
    ],
)
def test_a_program_that_has_a_companions_device_open_is_named_and_no_driver_is_changed(
    rig: PassthroughRig, path: str, program: str
) -> None:
    put(rig, AUDIO, path, ZERO)
    open_zero(rig, 812, program)
    message = refusal(rig)
    assert message.startswith(f"{AUDIO}, which goes along with GPU {GPU}, can't leave its driver")
    assert f"812 ({program})" in message
    (rig.root / "proc/812/fd/3").unlink()
    rig.prepare("u1")
    assert rig.drivers() == DURING


def test_a_program_that_has_the_gpus_i2c_bus_open_counts_as_a_user(rig: PassthroughRig) -> None:
    put(rig, GPU, "i2c-7/i2c-dev/i2c-7/dev", ZERO)
    open_zero(rig, 77, "ddcutil")
    assert "77 (ddcutil)" in refusal(rig)


def test_a_disk_on_a_companion_is_named_although_no_program_has_it_open(rig: PassthroughRig) -> None:
    disk = "usb3/3-2/3-2:1.0/host6/target6:0:0/6:0:0:0/block/sdb"
    put(rig, AUDIO, f"{disk}/dev", "8:16")
    put(rig, AUDIO, f"{disk}/sdb1/dev", "8:17")
    assert refusal(rig).endswith("it has disk sdb")


@pytest.mark.parametrize(("state", "is_used"), [("up", True), ("unknown", True), ("down", False)])
def test_a_network_interface_on_a_companion_is_used_unless_it_is_down(
    rig: PassthroughRig, state: str, is_used: bool
) -> None:
    put(rig, AUDIO, "usb3/3-2/3-2:1.0/net/enx001122/operstate", state)
    if is_used:
        assert refusal(rig).endswith("it has network interface enx001122")
    else:
        rig.prepare("u1")


def test_devices_below_a_function_are_searched_to_a_limited_depth_and_links_are_not_followed(
    rig: PassthroughRig,
) -> None:
    home = Path(rig.roots.sys, "bus/pci/devices", AUDIO)
    (home / "sound").mkdir()
    (home / "sound/back").symlink_to(home)
    put(rig, AUDIO, "sound/card1/dev", "116:99999999999")
    put(rig, AUDIO, "sound/card2/dev", "none")
    put(rig, AUDIO, "/".join(["hub"] * 40) + "/dev", ZERO)
    assert read_attached_devices(rig.roots, AUDIO).nodes == frozenset()
    assert read_attached_devices(rig.roots, "0000:99:00.0").nodes == frozenset()
