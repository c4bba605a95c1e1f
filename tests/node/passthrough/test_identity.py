"""The identity of a function without its vendor's driver: what a virtual machine must not have changed."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from dra_driver.hardware.port import Roots
from dra_driver.hardware.vfio import PciIdentity, read_identity
from dra_driver.node.devices.offering import PassthroughRule
from tests.node.passthrough.support.vendor_nodes import VendorRig
from tests.support.nodes.intel_tree import IntelCard
from tests.support.nodes.vendor_buses import new_intel

ARC = "0000:9a:00.0"
PASSED = "gpu-0000-9a-00-0-vfio"
SERIAL = "6c-9c-ed-ff-ff-00-12-34"


def space(*capabilities: tuple[int, int, bytes]) -> bytes:
    """A configuration space whose extended capabilities are these: number, offset of the next, content."""
    made = bytearray(4096)
    made[:4] = bytes.fromhex("8680c056")
    offset = 0x100
    for number, following, content in capabilities:
        struct.pack_into("<I", made, offset, number | 1 << 16 | following << 20)
        made[offset + 4 : offset + 4 + len(content)] = content
        offset = following
    return bytes(made)


def serial(text: str) -> bytes:
    return bytes.fromhex(text.replace("-", ""))[::-1]


WITH_SERIAL = space((0x0001, 0x140, b""), (0x0003, 0x200, serial(SERIAL)), (0x0010, 0, b""))


def read(folder: Path, content: bytes) -> PciIdentity:
    home = folder / "bus/pci/devices" / ARC
    home.mkdir(parents=True, exist_ok=True)
    (home / "config").write_bytes(content)
    return read_identity(Roots(sys=str(folder)), ARC)


def test_a_serial_number_is_read_wherever_it_is_in_the_list_and_written_as_lspci_does(tmp_path: Path) -> None:
    assert read(tmp_path, WITH_SERIAL).serial == SERIAL


@pytest.mark.parametrize(
    "content",
    [
        b"",
        WITH_SERIAL[:64],  # all that users other than root can read
        WITH_SERIAL[:0x100],  # a function of conventional PCI
        WITH_SERIAL[:0x146],
        b"\xff" * 4096,
        b"\0" * 4096,
        space((0x0001, 0x140, b""), (0x0001, 0x100, b"")),  # a cycle
        space((0x0001, 0x140, b""), (0x0001, 0x140, b"")),
        space((0x0001, 0xFFC, b"")),
        space((0x0001, 0x010, b"")),
        space((0x0003, 0, b"\0" * 8)),
        space((0x0003, 0, b"\xff" * 8)),
    ],
)
def test_a_function_without_a_serial_number_or_with_a_broken_list_has_none(tmp_path: Path, content: bytes) -> None:
    assert read(tmp_path, content).serial == ""


def test_a_fact_that_was_not_known_before_is_not_a_difference() -> None:
    now = PciIdentity("vendor 0x8086", SERIAL)
    assert now.difference_from(PciIdentity()) == ""
    assert now.difference_from(PciIdentity("vendor 0x8086")) == ""
    assert "is missing, but was" in PciIdentity("vendor 0x8086").difference_from(now)


def returned(tmp_path: Path, file: str, content: bytes) -> VendorRig:
    """Return a node whose Intel GPU was with a virtual machine, after which a file of the GPU has other content."""
    kernel = new_intel(tmp_path / "node", IntelCard(ARC, device_id=0x56C0))
    home = tmp_path / "node/sys/bus/pci/devices" / ARC
    (home / "config").write_bytes(WITH_SERIAL)
    (home / "subsystem_device").write_text("0x4905\n")
    rig = VendorRig(tmp_path, "intel", kernel, PassthroughRule(("*",), (ARC,)))
    rig.allocate("u1", PASSED)
    rig.prepare("u1")
    (home / file).write_bytes(content)
    rig.unprepare("u1")
    return rig


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("config", space((0x0003, 0, serial("6c-9c-ed-ff-ff-00-12-35"))), "its serial number is .*-35, but was .*-34"),
        ("config", WITH_SERIAL[:0x100], "its serial number is missing, but was"),
        ("subsystem_device", b"0x4906\n", "subsystem_device 0x4906"),
    ],
)
def test_a_gpu_of_intel_that_comes_back_with_another_identity_is_withheld(
    tmp_path: Path, file: str, content: bytes, why: str
) -> None:
    rig = returned(tmp_path, file, content)
    (problem,) = rig.current.problems
    assert problem.code == "hardware.identity-changed"
    assert re.search(why, problem.message)
    assert rig.returned.waits_for_claims
    rig.close()


def test_a_gpu_of_intel_that_comes_back_as_it_was_is_offered_again(tmp_path: Path) -> None:
    rig = returned(tmp_path, "config", WITH_SERIAL)
    assert rig.current.problems == ()
    assert not rig.returned.waits_for_claims
    rig.close()
