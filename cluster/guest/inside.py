"""What runs inside the guest: the plugin's own steps on real PCI functions, VFIO and sysfs. Prints one line of JSON.

The function that is used as a GPU is a random number generator with a USB controller in its IOMMU group. Each check
begins and ends with every function at its own driver.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from cluster.guest.held_device import HeldDevice
from dra_driver.base.errors import DriverError
from dra_driver.base.names import vfio_name
from dra_driver.base.wire import DeviceType
from dra_driver.hardware.driver_binding import BusAccess, ChildWriter
from dra_driver.hardware.facts import PassthroughFacts
from dra_driver.hardware.nvidia.published import NvidiaGpu
from dra_driver.hardware.port import Roots
from dra_driver.hardware.vfio import answers, read_physical
from dra_driver.node.devices.describing import Device
from dra_driver.node.devices.offering import Inventory, Offering
from dra_driver.node.ledger.record import UNFINISHED
from dra_driver.node.prepare.steps.passthrough import PassthroughServices
from tests.support.plugin.killing import expect, in_child
from tests.support.plugin.parts import Rig

GPU, USB, DISK = "0000:01:00.0", "0000:01:00.1", "0000:02:00.0"
BEFORE = {GPU: "virtio-pci", USB: "xhci_hcd"}
DURING = {GPU: "vfio-pci", USB: "vfio-pci"}
BUS = Path("/sys/bus/pci")
NOT_SET = "(null)"
MAX_REPAIRS = 20
PREPARE_WRITES, UNPREPARE_WRITES = 8, 9  # four for each function, and a reset


class DyingWriter(ChildWriter):
    """Writes as the driver does, and ends this process with SIGKILL after the n-th write; before any for 0."""

    def __init__(self, last: int) -> None:
        self.left = last

    def write(self, path: Path, text: str, deadline_s: float) -> None:
        if self.left > 0:
            super().write(path, text, deadline_s)
        self.left -= 1
        if self.left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


class GuestRig(Rig):
    """The plugin on this kernel, with one device for virtual machines."""

    patience_s = 120.0

    def __init__(self, root: Path, address: str = GPU, writer: ChildWriter | None = None) -> None:
        self.passthrough = PassthroughServices(BusAccess(Roots(), writer or ChildWriter()))
        super().__init__(root)
        gpu = NvidiaGpu(uuid="GPU-1", pci_address=address, minor=-1, memory_bytes=None, passthrough=PassthroughFacts())
        self.inventory = Inventory(Offering((Device(vfio_name(address), DeviceType.VFIO, {}, {}, gpu),)))
        self.allocate("u1", vfio_name(address))


def driver_of(address: str) -> str:
    link = BUS / "devices" / address / "driver"
    return link.readlink().name if link.is_symlink() else ""


def expect_state(wanted: dict[str, str]) -> None:
    expect({address: driver_of(address) for address in wanted}, wanted)
    for address in wanted:
        expect((BUS / "devices" / address / "driver_override").read_text().strip(), NOT_SET)


def refusal(work: Callable[[], object]) -> DriverError:
    try:
        work()
    except DriverError as error:
        return error
    raise AssertionError("nothing was refused")


def check_there_and_back(folder: Path) -> None:
    rig = GuestRig(folder)
    rig.prepare("u1")
    expect_state(DURING)
    document = json.loads(rig.files()[rig.file_of("u1")])
    (node,) = (one for device in document["devices"] for one in device["containerEdits"]["deviceNodes"])
    status = Path(node["path"]).stat()
    expect((node["major"], node["minor"]), (os.major(status.st_rdev), os.minor(status.st_rdev)))
    rig.unprepare("u1")
    expect_state(BEFORE)
    rig.assert_empty()
    rig.close()


def check_a_machine_that_still_has_the_device(folder: Path) -> None:
    rig = GuestRig(folder)
    rig.prepare("u1")
    with HeldDevice(GPU):
        error = refusal(lambda: rig.unprepare("u1"))
        expect((error.code, str(os.getpid()) in str(error)), ("hardware.gpu-in-use", True))
        expect_state(DURING)
    rig.unprepare("u1")
    expect_state(BEFORE)
    rig.close()


def check_a_write_that_waits_in_the_kernel(folder: Path) -> None:
    """Unbinding waits in the kernel for the process that has the device; the child is left behind, and ends later."""
    rig = GuestRig(folder)
    rig.prepare("u1")
    with HeldDevice(GPU):
        try:
            ChildWriter().write(BUS / "drivers/vfio-pci/unbind", GPU, 5.0)
        except TimeoutError:
            pass
        else:
            raise AssertionError("the kernel did not wait")
    rig.unprepare("u1")  # waits for the device as the child that was left behind does
    expect_state(BEFORE)
    rig.close()


def check_kills_of_prepare(folder: Path) -> None:
    _kill_after_writes(folder, range(PREPARE_WRITES + 1), is_unprepare=False)


def check_kills_of_unprepare(folder: Path) -> None:
    _kill_after_writes(folder, range(0, UNPREPARE_WRITES + 1, 2), is_unprepare=True)


def _kill_after_writes(folder: Path, places: range, *, is_unprepare: bool) -> None:
    """After a kill behind any of these writes the next agent gives every function back."""
    for writes in places:
        place = folder / str(writes)
        place.mkdir()
        if is_unprepare:
            expect(in_child(partial(_call, place, ChildWriter()))[1], "")
        status, fault = in_child(partial(_call, place, DyingWriter(writes), is_unprepare=is_unprepare))
        expect((fault, os.WIFSIGNALED(status)), ("", True))
        expect(in_child(partial(_repair, place))[1], "")
        expect_state(BEFORE)
        print(f"killed after write {writes} of {'unprepare' if is_unprepare else 'prepare'}", flush=True)


def _call(place: Path, writer: ChildWriter, *, is_unprepare: bool = False) -> None:
    rig = GuestRig(place, writer=writer)
    (rig.unprepare if is_unprepare else rig.prepare)("u1")


def _repair(place: Path) -> None:
    """Be the next agent, which repeats what did not end in time: a write takes seconds where nothing is accelerated."""
    rig = GuestRig(place)
    for _ in range(MAX_REPAIRS):
        rig.repair.run()
        if not set(rig.states().values()) & set(map(str, UNFINISHED)):
            break
    expect_state(DURING if rig.states() else BEFORE)
    rig.unprepare("u1")
    rig.assert_empty()


def check_a_group_that_serves_the_host(folder: Path) -> None:
    rig = GuestRig(folder, USB)
    error = refusal(lambda: rig.prepare("u1", seconds=1))
    expect((error.code, f"{GPU} (virtio-pci)" in str(error)), ("hardware.group-not-viable", True))
    expect_state(BEFORE)
    rig.close()


def check_unsafe_settings(folder: Path) -> None:
    for file, code in (
        ("vfio/parameters/enable_unsafe_noiommu_mode", "hardware.noiommu-mode"),
        ("vfio_iommu_type1/parameters/allow_unsafe_interrupts", "hardware.unsafe-interrupts"),
    ):
        parameter = Path("/sys/module", file)
        if not parameter.exists():  # a kernel that is built without it
            continue
        (folder / code).mkdir()
        parameter.write_text("Y")
        rig = GuestRig(folder / code)
        expect(refusal(partial(rig.prepare, "u1", seconds=1)).code, code)
        parameter.write_text("N")
        expect_state(BEFORE)
        rig.close()


def check_virtual_functions(folder: Path) -> None:
    """A virtual function without a driver goes to a machine and has none afterwards; its disk as a whole does not."""
    home = BUS / "devices" / DISK
    (home / "sriov_drivers_autoprobe").write_text("0")
    (home / "sriov_numvfs").write_text("2")
    try:
        function = (home / "virtfn0").readlink().name
        expect(read_physical(Roots(), function), DISK)
        expect((BUS / "devices" / function / "config").read_bytes()[:4], b"\xff" * 4)
        expect(answers(Roots(), function), True)
        rig = GuestRig(folder, function)
        rig.prepare("u1")
        expect_state({function: "vfio-pci", DISK: "nvme"})
        rig.unprepare("u1")
        expect_state({function: "", DISK: "nvme"})
        rig.close()
        (folder / "whole").mkdir()
        whole = GuestRig(folder / "whole", DISK)
        expect(refusal(lambda: whole.prepare("u1", seconds=1)).code, "hardware.has-virtual-functions")
        expect(driver_of(DISK), "nvme")
        whole.close()
    finally:
        (home / "sriov_numvfs").write_text("0")


CHECKS = (
    check_there_and_back,
    check_a_group_that_serves_the_host,
    check_unsafe_settings,
    check_virtual_functions,
    check_a_machine_that_still_has_the_device,
    check_a_write_that_waits_in_the_kernel,
    check_kills_of_unprepare,
    check_kills_of_prepare,
)


def main() -> int:
    found = {}
    for check in CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                expect_state(BEFORE)
                check(Path(folder))
            except Exception as error:
                traceback.print_exc(file=sys.stdout)
                found[check.__name__] = f"{type(error).__name__}: {error}"
            else:
                found[check.__name__] = ""
        print(check.__name__, found[check.__name__] or "held", flush=True)
    print("RESULT " + json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    main()
