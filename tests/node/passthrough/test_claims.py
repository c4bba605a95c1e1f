"""A GPU for a virtual machine: bound, given back to the driver that it had, and refused where that is not safe.

The kernel is simulated at the lowest layer, the writes to sysfs. Not covered: a real IOMMU.
"""

import errno
import json
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.base.errors import ClaimError, HardwareError, PrepareError
from dra_driver.base.machine import Deadline
from dra_driver.hardware.driver_binding import ChildWriter
from dra_driver.hardware.simulated.kernel import AUDIO_CLASS, BRIDGE_CLASS
from dra_driver.hardware.vfio import read_passthrough_group
from dra_driver.node.ledger.locks import NodeLocks, device_lock
from dra_driver.node.ledger.recorded_steps import RecordedPassthrough
from tests.node.passthrough.support.bus import AUDIO, BEFORE, DURING, GPU, GROUP, OTHER, PASSED, WHOLE, PassthroughRig
from tests.support.plugin.parts import config, in_thread


@pytest.fixture
def rig(tmp_path):
    rig = PassthroughRig(tmp_path)
    yield rig
    rig.close()


def nodes_of(rig, uid):
    document = json.loads(rig.files()[rig.file_of(uid)])
    own = [node["path"] for device in document["devices"] for node in device["containerEdits"]["deviceNodes"]]
    common = document.get("containerEdits", {})
    return own, [node["path"] for node in common.get("deviceNodes", [])], common.get("env", [])


def test_a_claim_gets_the_group_node_of_a_gpu_that_left_its_driver_with_its_audio_function(rig):
    rig.allocate("u1", PASSED)
    (device,) = rig.prepare("u1")
    assert device.device == PASSED
    assert rig.drivers() == DURING
    assert rig.overrides() == {"(null)"}
    own, common, env = nodes_of(rig, "u1")
    assert (own, common, env) == ([f"/dev/vfio/{GROUP}"], [], ["NVIDIA_VISIBLE_DEVICES=void"])


def test_unprepare_resets_the_gpu_and_gives_each_function_back_to_its_own_driver(rig):
    rig.allocate("u1", PASSED)
    rig.prepare("u1")
    rig.kernel.writes.clear()
    rig.unprepare("u1")
    assert rig.drivers() == BEFORE
    assert rig.overrides() == {"(null)"}
    assert rig.kernel.writes[0] == ("reset", "1")
    rig.assert_empty()


def test_every_device_of_a_gpu_is_held_while_it_leaves_its_driver_and_while_it_comes_back(rig):
    other, free = NodeLocks(rig.data / "locks"), []

    def look(*_):
        for name in (WHOLE, PASSED):
            with suppress(PrepareError), other.hold([device_lock(name)], Deadline(0)):
                free.append(name)

    rig.kernel.before = lambda *write: in_thread(look, *write)[0].join(60)
    rig.allocate("u1", PASSED)
    rig.prepare("u1")
    rig.unprepare("u1")
    assert (free, len(rig.kernel.writes) > 4) == ([], True)
    other.close()


def test_a_function_without_a_driver_has_none_afterwards(rig):
    rig.kernel.kernel.write(Path(rig.roots.sys, "bus/pci/drivers/snd_hda_intel/unbind"), AUDIO, 1.0)
    rig.allocate("u1", PASSED)
    rig.prepare("u1")
    assert rig.drivers() == DURING
    rig.unprepare("u1")
    assert rig.drivers() == {**BEFORE, AUDIO: ""}


def test_what_an_administrator_bound_at_boot_stays_bound(rig):
    for one in (GPU, AUDIO):
        drivers = Path(rig.roots.sys, "bus/pci/drivers")
        rig.kernel.kernel.write(drivers / BEFORE[one] / "unbind", one, 1.0)
        rig.kernel.kernel.write(Path(rig.roots.sys, "bus/pci/devices", one, "driver_override"), "vfio-pci", 1.0)
        rig.kernel.kernel.write(drivers / "vfio-pci/bind", one, 1.0)
    rig.kernel.writes.clear()
    rig.allocate("u1", PASSED)
    rig.prepare("u1")
    rig.unprepare("u1")
    assert rig.drivers() == DURING
    assert {name for name, _ in rig.kernel.writes} <= {"reset", "driver_override"}


def test_a_repeated_prepare_writes_nothing_and_gives_the_same_nodes(rig):
    rig.allocate("u1", PASSED)
    first, before = rig.prepare("u1"), rig.files()
    rig.kernel.writes.clear()
    assert rig.prepare("u1") == first
    assert (rig.kernel.writes, rig.files()) == ([], before)


def test_iommufd_is_given_where_a_config_prefers_it_and_the_kernel_has_it(rig):
    wants = config("VfioDeviceConfig", iommu={"backendPolicy": "PreferIommuFD", "enableAPIDevice": True})
    rig.allocate("u1", PASSED, configs=(wants,))
    rig.kernel.kernel.add_iommufd()
    rig.prepare("u1")
    own, common, _ = nodes_of(rig, "u1")
    assert (own, common) == ([f"/dev/vfio/devices/vfio{GROUP}"], ["/dev/iommu"])


def test_without_iommufd_the_preference_falls_back_to_the_group_with_its_api(rig):
    wants = config("VfioDeviceConfig", iommu={"backendPolicy": "PreferIommuFD", "enableAPIDevice": True})
    rig.allocate("u1", PASSED, configs=(wants,))
    rig.prepare("u1")
    own, common, _ = nodes_of(rig, "u1")
    assert (own, common) == ([f"/dev/vfio/{GROUP}"], ["/dev/vfio/vfio"])


@pytest.mark.parametrize(("first", "second"), [(WHOLE, PASSED), (PASSED, WHOLE)])
def test_a_gpu_is_never_prepared_for_a_container_and_a_virtual_machine_at_once(rig, first, second):
    rig.allocate("u1", first)
    rig.prepare("u1")
    rig.allocate("u2", second)
    with pytest.raises(ClaimError, match="u1"):
        rig.prepare("u2", seconds=0.3)
    rig.unprepare("u1")
    rig.prepare("u2")
    assert (rig.drivers() == DURING) is (second == PASSED)


@pytest.mark.parametrize("user", ["nvidia0", "dri/card3"])
def test_a_gpu_that_a_process_has_open_stays_with_its_driver_and_the_process_is_named_with_its_pod(rig, user):
    drm = Path(rig.roots.sys, "bus/pci/devices", GPU, "drm/card3")
    drm.mkdir(parents=True)
    rig.open_node(4711, user, "dcgm", pod="0d1c9f62-5b8e-4b7a-9f0e-6a1e7f3b2c11")
    rig.allocate("u1", PASSED)
    with pytest.raises(HardwareError, match=r"4711 \(dcgm\) of pod .*0d1c9f62") as refused:
        rig.prepare("u1")
    assert refused.value.code == "hardware.gpu-in-use"
    assert rig.drivers() == BEFORE
    rig.assert_empty()


def test_a_process_that_the_library_lists_counts_as_a_user(rig):
    rig.hardware.busy.add(0)
    rig.allocate("u1", PASSED)
    with pytest.raises(HardwareError, match="4711"):
        rig.prepare("u1")
    assert rig.drivers() == BEFORE


def test_a_gpu_that_a_virtual_machine_still_has_open_is_not_taken_from_it(rig):
    rig.allocate("u1", PASSED)
    rig.prepare("u1")
    rig.open_node(99, f"vfio/{GROUP}", "qemu-kvm")
    with pytest.raises(HardwareError, match=r"99 \(qemu-kvm\)"):
        rig.unprepare("u1")
    assert rig.drivers() == DURING
    (rig.root / "proc/99/fd/3").unlink()
    rig.unprepare("u1")
    assert rig.drivers() == BEFORE


def test_a_bind_that_the_kernel_refuses_leaves_every_function_with_its_former_driver(rig):
    def refuse(file, text):
        if (file, text) == ("bind", GPU) and rig.kernel.writes[-2:][0][0] == "unbind":
            raise OSError(errno.EBUSY, "busy")

    rig.kernel.before = refuse
    rig.allocate("u1", PASSED)
    with pytest.raises(HardwareError, match="busy"):
        rig.prepare("u1")
    assert rig.drivers()[OTHER] == "nvidia"
    rig.kernel.before = lambda *_: None
    rig.unprepare("u1")  # what the kubelet does next
    assert rig.drivers() == BEFORE
    assert rig.overrides() == {"(null)"}
    rig.assert_empty()


def test_a_bind_without_effect_is_noticed_by_reading_the_link_back(rig):
    class IgnoringBinds(type(rig.kernel.kernel)):
        def _bind(self, address, driver):
            if driver == "vfio-pci":
                return
            super()._bind(address, driver)

    rig.kernel.kernel.__class__ = IgnoringBinds
    rig.allocate("u1", PASSED)
    with pytest.raises(HardwareError, match="is bound to no driver"):
        rig.prepare("u1")
    assert rig.drivers() == BEFORE
    rig.assert_empty()


def test_an_unbind_that_times_out_is_an_error_and_is_undone_later(rig):
    def hang(file, text):
        if file == "unbind":
            raise TimeoutError("writing takes longer")

    rig.kernel.before = hang
    rig.allocate("u1", PASSED)
    with pytest.raises(HardwareError) as refused:
        rig.prepare("u1")
    assert refused.value.code == "hardware.not-answering"
    rig.kernel.before = lambda *_: None
    rig.unprepare("u1")
    assert rig.drivers() == BEFORE
    rig.assert_empty()


def test_a_gpu_that_cannot_be_reset_stays_bound_and_its_claim_stays_unpreparing(rig):
    rig.allocate("u1", PASSED)
    rig.prepare("u1")
    Path(rig.roots.sys, "bus/pci/devices", GPU, "config").write_bytes(b"\xff" * 4)
    with pytest.raises(HardwareError, match="does not answer after the reset"):
        rig.unprepare("u1")
    assert rig.drivers() == DURING
    assert rig.states() == {"u1": "unpreparing"}


def test_a_claim_whose_gpu_left_the_bus_can_be_unprepared(rig):
    rig.allocate("u1", PASSED)
    rig.prepare("u1")
    Path(rig.roots.sys, "bus/pci/devices", GPU).unlink()
    rig.unprepare("u1")
    rig.assert_empty()


def test_prepare_starts_again_after_a_reboot_which_has_undone_everything(rig):
    rig.allocate("u1", PASSED)
    rig.prepare("u1")
    rig.kernel.kernel.add_function(GPU, "nvidia", GROUP)
    rig.kernel.kernel.add_function(AUDIO, "snd_hda_intel", GROUP, pci_class=AUDIO_CLASS)
    rig.reboot()
    rig.prepare("u1")
    assert rig.drivers() == DURING
    rig.unprepare("u1")
    assert rig.drivers() == BEFORE


def test_the_ledger_has_the_former_drivers_before_the_first_write_and_each_write_before_it_begins(rig):
    seen = []

    def look(file, text):
        (record,) = rig.ledger.records()
        (step,) = record.steps_of(RecordedPassthrough)
        seen.append((file, {one.address: one.former for one in step.functions}, {one.begun for one in step.functions}))

    rig.kernel.before = look
    rig.allocate("u1", PASSED)
    rig.prepare("u1")
    assert all(former == {GPU: "nvidia", AUDIO: "snd_hda_intel"} for _, former, _ in seen)
    begun = {"driver_override": {"override", "clear"}, "unbind": {"unbind"}, "bind": {"bind"}}
    assert all(begun[file] & writes for file, _, writes in seen)
    assert len(seen) == 8


# -- what is refused


def refusal(rig):
    rig.allocate("u1", PASSED)
    with pytest.raises(HardwareError) as refused:
        rig.prepare("u1", seconds=0.3)
    assert BEFORE.items() <= rig.drivers().items()
    rig.assert_empty()
    return refused.value


def set_parameter(rig, module, name):
    path = Path(rig.roots.sys, "module", module, "parameters", name)
    path.parent.mkdir(parents=True)
    path.write_text("Y\n")


@pytest.mark.parametrize(
    ("module", "name", "code"),
    [
        ("vfio", "enable_unsafe_noiommu_mode", "hardware.noiommu-mode"),
        ("vfio_iommu_type1", "allow_unsafe_interrupts", "hardware.unsafe-interrupts"),
        ("iommufd", "allow_unsafe_interrupts", "hardware.unsafe-interrupts"),
    ],
)
def test_a_kernel_whose_settings_do_not_isolate_virtual_machines_is_refused(rig, module, name, code):
    set_parameter(rig, module, name)
    assert refusal(rig).code == code


def test_a_missing_module_is_named_and_not_loaded(rig):
    for file in ("bind", "unbind"):
        Path(rig.roots.sys, "bus/pci/drivers/vfio-pci", file).unlink()
    error = refusal(rig)
    assert error.code == "hardware.module-missing"
    assert "vfio_pci" in str(error)
    assert rig.kernel.writes == []


def test_a_group_with_a_function_that_the_host_uses_is_refused_and_the_function_is_named(rig):
    rig.kernel.kernel.add_function("0000:43:00.0", "nvme", GROUP, pci_class=0x010802)
    error = refusal(rig)
    assert error.code == "hardware.group-not-viable"
    assert "0000:43:00.0 (nvme)" in str(error)


def test_a_bridge_and_a_function_without_a_driver_may_be_in_the_group(rig):
    rig.kernel.kernel.add_function("0000:40:01.0", "pcieport", GROUP, pci_class=BRIDGE_CLASS)
    rig.kernel.kernel.add_function("0000:43:00.0", "", GROUP, pci_class=0x010802)
    assert [one.address for one in read_passthrough_group(rig.roots, GPU).functions] == [GPU, AUDIO]


def test_a_gpu_with_virtual_functions_is_refused(rig):
    Path(rig.roots.sys, "bus/pci/devices", GPU, "sriov_numvfs").write_text("2\n")
    assert refusal(rig).code == "hardware.has-virtual-functions"


def test_a_gpu_without_a_way_to_reset_it_is_refused(rig):
    Path(rig.roots.sys, "bus/pci/devices", GPU, "reset").unlink()
    assert refusal(rig).code == "hardware.no-reset"


def test_a_config_of_another_type_is_refused_by_name(rig):
    rig.allocate("u1", PASSED, configs=(config("GpuConfig", requests=("gpu",)),))
    with pytest.raises(ClaimError, match=r"GpuConfig does not go with .* of type vfio"):
        rig.prepare("u1")


# -- variants


@pytest.mark.parametrize("spelling", ["nvgrace_gpu_vfio_pci", "nvgrace-gpu-vfio-pci"])
def test_a_superchip_gets_the_variant_driver_however_sysfs_spells_it(rig, spelling):
    rig.kernel.kernel.add_function(GPU, "nvidia", GROUP, pci_id=0x294110DE)
    rig.kernel.kernel.add_driver(spelling)
    rig.allocate("u1", PASSED)
    rig.prepare("u1")
    assert rig.drivers()[GPU] == spelling
    rig.unprepare("u1")
    assert rig.drivers() == BEFORE


def test_a_superchip_without_its_variant_driver_is_refused_because_its_memory_would_be_missing(rig):
    rig.kernel.kernel.add_function(GPU, "nvidia", GROUP, pci_id=0x294110DE)
    assert "nvgrace_gpu_vfio_pci" in str(refusal(rig))


def test_the_driver_that_an_administrator_chose_is_used(rig):
    rig.kernel.kernel.add_function(GPU, "nvidia", GROUP, pci_id=0x294110DE)
    devices = rig.inventory.offering.devices
    chosen = tuple(
        replace(d, gpu=replace(d.gpu, passthrough=replace(d.gpu.passthrough, driver="vfio-pci")))
        if d.name == PASSED
        else d
        for d in devices
    )
    rig.inventory = replace(rig.inventory, offering=replace(rig.inventory.offering, devices=chosen))
    rig.allocate("u1", PASSED)
    rig.prepare("u1")
    assert rig.drivers()[GPU] == "vfio-pci"


# -- the child that writes


def test_the_child_reports_the_kernels_error(tmp_path):
    with pytest.raises(OSError, match="failed") as failed:
        ChildWriter().write(Path("/dev/full"), "0000:41:00.0", 20.0)
    assert failed.value.errno == errno.ENOSPC


def test_a_child_that_blocks_in_the_kernel_is_abandoned_at_the_deadline(tmp_path):
    import os

    os.mkfifo(tmp_path / "unbind")  # opening it for writing waits for a reader that never comes
    with pytest.raises(TimeoutError):
        ChildWriter().write(tmp_path / "unbind", "0000:41:00.0", 0.05)


def test_the_child_writes_the_text_in_one_call(tmp_path):
    (tmp_path / "bind").write_text("")
    ChildWriter().write(tmp_path / "bind", "0000:41:00.0", 20.0)
    assert (tmp_path / "bind").read_text() == "0000:41:00.0"


def test_an_attempt_continues_where_the_last_one_ended_and_has_time_for_a_write(rig):
    rig.allocate("u1", PASSED)
    rig.prepare("u1")
    deadlines = []

    class Slow(type(rig.kernel)):
        def write(self, path, text, deadline_s):
            deadlines.append(deadline_s)
            super().write(path, text, deadline_s)
            if path.name == "driver_override" and text.strip():
                raise TimeoutError("it was written, and took longer than there was time")

    rig.kernel.__class__ = Slow
    for attempt in range(2):
        with pytest.raises(HardwareError) if attempt == 0 else nullcontext():
            rig.preparer.unprepare("u1", Deadline.after(0.5))
    assert rig.drivers() == BEFORE
    assert rig.overrides() == {"(null)"}
    assert min(deadlines) >= 1.0
