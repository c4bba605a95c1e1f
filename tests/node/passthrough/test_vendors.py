"""GPUs of AMD and Intel for virtual machines: offered, bound with their companions, given back, refused by name.

The trees of files are modelled on captured machines; the kernel is simulated at the lowest layer, the writes to sysfs.
"""

import json
from pathlib import Path

import pytest

from dra_driver.base.errors import ClaimError, HardwareError
from dra_driver.base.wire import DeviceType
from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated.kernel import BRIDGE_CLASS
from dra_driver.node.devices.offering import ALL_KEPT, KeptFields, PassthroughRule
from dra_driver.tools import main
from tests.node.passthrough.support.vendor_nodes import VendorRig
from tests.support.nodes.amd_tree import AmdCard
from tests.support.nodes.intel_tree import IntelCard
from tests.support.nodes.vendor_buses import DISPLAY_CLASS, add_radeon_companions, group_of, new_amd, new_intel
from tests.support.plugin.parts import config

UNCOUNTED = KeptFields(counters=False)
INSTINCT, OTHER, RADEON = "0000:05:00.0", "0000:15:00.0", "0000:03:00.0"
ARC, FIRST, SECOND = "0000:9a:00.0", "0000:9a:00.1", "0000:9a:00.2"
WHOLE, PASSED = "gpu-0000-05-00-0", "gpu-0000-05-00-0-vfio"
MI300X = AmdCard(INSTINCT, number=1, render_minor=128)
CPX = AmdCard(
    INSTINCT, number=1, render_minor=128, modes=("CPX", "NPS1"), partitions=tuple(range(128, 136)), unique_id=0xA1
)
NAVI21 = AmdCard(RADEON, number=0, render_minor=140, device_id=0x73BF, modes=None, unique_id=0xB2)
FLEX = IntelCard(ARC, device_id=0x56C0, memory_bytes=14 << 30, virtuals=31)


def rule(*names, **more):
    return PassthroughRule(("*",), names, **more)


@pytest.fixture
def made(tmp_path):
    rigs = []

    def make(vendor, kernel, *rules):
        rigs.append(VendorRig(tmp_path, vendor, kernel, *rules))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


def node_of(tmp_path, *cards, **more):
    return new_amd(tmp_path / "node", *cards, **more)


def offered(rig, keeps=ALL_KEPT):
    return {device.name for device in rig.current.offering.for_server(keeps).devices}


def fit_together(inventory, *names):
    """Return whether the counters let these devices be allocated together."""
    sets = {name: dict(counters) for name, counters in inventory.offering.counter_sets.items()}
    for device in inventory.devices:
        for counter, amount in device.counters.items() if device.name in names else ():
            sets[device.counter_set][counter] -= amount
    return all(left >= 0 for counters in sets.values() for left in counters.values())


def paths_of(rig, uid):
    document = json.loads(rig.files()[rig.file_of(uid)])
    every = [*(one["containerEdits"] for one in document["devices"]), document.get("containerEdits", {})]
    return {node["path"] for edits in every for node in edits.get("deviceNodes", [])}


# -- AMD


def test_an_instinct_is_offered_whole_and_for_virtual_machines_and_the_counters_allow_one_of_them(tmp_path, made):
    rig = made("amd", node_of(tmp_path, MI300X), rule(INSTINCT))
    assert offered(rig) == {WHOLE, PASSED}
    assert fit_together(rig.current, WHOLE)
    assert not fit_together(rig.current, WHOLE, PASSED)
    assert offered(rig, UNCOUNTED) == {PASSED}


def test_a_gpu_of_amd_for_virtual_machines_has_the_attributes_of_amds_own_driver(tmp_path, made):
    rig = made("amd", node_of(tmp_path, MI300X), rule(INSTINCT))
    device = rig.current.by_name[PASSED]
    assert device.type is DeviceType.VFIO
    standard = "resource.kubernetes.io/"
    assert dict(device.attributes) == {
        "type": "vfio",
        "productName": "AMD_Instinct_MI300X",
        "deviceID": "0x74a1",
        "vendorID": "0x1002",
        "pciAddr": INSTINCT,
        "iommuGroup": "5",
        "isVF": False,
        "iommuFDEnabled": False,
        "numaNode": -1,
        f"{standard}pciBusID": INSTINCT,
        f"{standard}pcieRoot": "pci0000:00",
        "architecture": "gfx942",
        "uniqueID": "93bb3629c01aea1c",
    }
    assert dict(device.capacity) == {
        "memory": 192 << 30, "computeUnits": 304, "simdUnits": 1216, "addressableMemory": 16 << 20,
    }  # fmt: skip


def test_a_gpu_of_amd_goes_to_a_virtual_machine_and_comes_back_and_is_tested_again(tmp_path, made):
    rig = made("amd", node_of(tmp_path, MI300X), rule(INSTINCT))
    before = rig.current
    rig.allocate("u1", PASSED)
    rig.prepare("u1")
    assert rig.driver_of(INSTINCT) == "vfio-pci"
    assert paths_of(rig, "u1") == {f"/dev/vfio/{group_of(INSTINCT)}", "/dev/vfio/vfio"}
    assert offered(rig) == {PASSED}
    assert rig.current.by_name[PASSED].attributes == before.by_name[PASSED].attributes
    assert rig.problems() == {}  # absent by intent
    rig.unprepare("u1")
    assert rig.driver_of(INSTINCT) == "amdgpu"
    assert rig.overrides() == {"(null)"}
    assert rig.current == before
    assert rig.tests.retested == ["93bb3629c01aea1c"]


def test_a_config_can_leave_out_the_api_device_of_vfio(tmp_path, made):
    rig = made("amd", node_of(tmp_path, MI300X), rule(INSTINCT))
    rig.allocate("u1", PASSED, configs=(config("VfioDeviceConfig", iommu={"enableAPIDevice": False}),))
    rig.prepare("u1")
    assert paths_of(rig, "u1") == {f"/dev/vfio/{group_of(INSTINCT)}"}


def test_partitions_and_the_device_for_virtual_machines_exclude_each_other(tmp_path, made):
    rig = made("amd", node_of(tmp_path, CPX), rule(INSTINCT))
    parts = {f"{WHOLE}-cpx-{number}" for number in range(8)}
    assert offered(rig) == {*parts, f"{WHOLE}-cpx-all", PASSED}
    assert fit_together(rig.current, *parts)
    assert fit_together(rig.current, PASSED)
    for other in (*parts, f"{WHOLE}-cpx-all"):
        assert not fit_together(rig.current, PASSED, other)
    assert offered(rig, UNCOUNTED) == {PASSED}
    rig.allocate("u1", f"{WHOLE}-cpx-3")
    rig.prepare("u1")
    assert offered(rig, UNCOUNTED) == parts
    rig.unprepare("u1")
    assert offered(rig, UNCOUNTED) == {PASSED}


def test_a_divided_gpu_is_one_device_for_a_virtual_machine_and_is_divided_again_afterwards(tmp_path, made):
    rig = made("amd", node_of(tmp_path, CPX), rule(INSTINCT))
    before = rig.current
    rig.allocate("u1", PASSED)
    rig.prepare("u1")
    assert offered(rig) == {PASSED}
    assert rig.current.offering.counter_sets == {}
    rig.unprepare("u1")
    assert rig.current == before


def test_a_radeons_audio_and_usb_functions_go_along_and_come_back_to_their_own_drivers(tmp_path, made):
    kernel = node_of(tmp_path, NAVI21, pci_class=DISPLAY_CLASS)
    audio, usb, type_c = add_radeon_companions(kernel, RADEON)
    kernel.add_function("0000:02:00.0", "pcieport", group_of(RADEON), pci_class=BRIDGE_CLASS)  # the card's own switch
    rig = made("amd", kernel, rule(RADEON))
    rig.allocate("u1", "gpu-0000-03-00-0-vfio")
    rig.prepare("u1")
    assert {rig.driver_of(one) for one in (RADEON, audio, usb, type_c)} == {"vfio-pci"}
    assert rig.driver_of("0000:02:00.0") == "pcieport"
    rig.unprepare("u1")
    found = [rig.driver_of(one) for one in (RADEON, audio, usb, type_c)]
    assert found == ["amdgpu", "snd_hda_intel", "xhci_hcd", "i2c-designware-pci"]
    assert rig.overrides() == {"(null)"}


def test_a_radeon_whose_group_has_a_function_of_the_host_is_not_offered_and_the_function_is_named(tmp_path, made):
    kernel = node_of(tmp_path, NAVI21, pci_class=DISPLAY_CLASS)
    add_radeon_companions(kernel, RADEON)
    kernel.add_function("0000:04:00.0", "xhci_hcd", group_of(RADEON), pci_class=0x0C0330)  # the board's own USB
    rig = made("amd", kernel, rule(RADEON))
    (problem,) = [one for one in rig.current.problems if one.subject == RADEON]
    assert problem.code == "hardware.group-not-viable"
    assert "0000:04:00.0 (xhci_hcd)" in problem.message
    assert offered(rig) == {"gpu-0000-03-00-0"}


def test_a_gpu_bound_to_vfio_since_boot_is_offered_by_its_pci_ids_and_again_after_each_claim(tmp_path, made):
    kernel = node_of(tmp_path, MI300X, AmdCard(OTHER, number=2, render_minor=150, unique_id=0xC3))
    kernel._unbind(INSTINCT, "amdgpu")
    kernel._link_driver(INSTINCT, "vfio-pci")
    rig = made("amd", kernel, rule(INSTINCT))
    for uid in ("u1", "u2"):
        assert rig.current.by_name[PASSED].attributes["productName"] == "AMD_Instinct_MI300X"
        assert offered(rig) == {PASSED, "gpu-0000-15-00-0"}
        rig.allocate(uid, PASSED)
        rig.prepare(uid)
        rig.unprepare(uid)
        assert rig.driver_of(INSTINCT) == "vfio-pci"


def test_an_administrators_override_of_a_function_that_is_never_bound_elsewhere_stays(tmp_path, made):
    kernel = node_of(tmp_path, MI300X)
    kernel._unbind(INSTINCT, "amdgpu")
    kernel._link_driver(INSTINCT, "vfio-pci")
    override = tmp_path / "node/sys/bus/pci/devices" / INSTINCT / "driver_override"
    override.write_text("vfio-pci\n")
    rig = made("amd", kernel, rule(INSTINCT))
    rig.allocate("u1", PASSED)
    rig.prepare("u1")
    rig.unprepare("u1")
    assert (rig.driver_of(INSTINCT), override.read_text()) == ("vfio-pci", "vfio-pci\n")


@pytest.mark.parametrize("other", [f"{WHOLE}-cpx-3", f"{WHOLE}-cpx-all"])
def test_one_claim_never_has_a_gpu_for_a_virtual_machine_and_for_containers(tmp_path, made, other):
    rig = made("amd", node_of(tmp_path, CPX), rule(INSTINCT))
    rig.allocate("u1", other, PASSED)
    with pytest.raises(ClaimError, match="which are the same GPU") as refused:
        rig.prepare("u1")
    assert refused.value.code == "claim.device-in-use"
    assert rig.driver_of(INSTINCT) == "amdgpu"
    assert rig.states() == {}


def test_admin_access_to_a_gpu_for_virtual_machines_is_refused_by_name_and_changes_nothing(tmp_path, made):
    rig = made("amd", node_of(tmp_path, MI300X), rule(INSTINCT))
    rig.allocate("u1", PASSED)
    rig.prepare("u1")
    rig.allocate("u2", PASSED)
    rig.api.claims["ns", "claim-u2"]["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    with pytest.raises(ClaimError, match=f"has admin access to {PASSED}") as refused:
        rig.prepare("u2")
    assert refused.value.code == "claim.no-admin-access"
    rig.unprepare("u2")
    assert rig.driver_of(INSTINCT) == "vfio-pci"


def test_a_program_that_uses_the_gpu_through_kfd_counts_as_a_user(tmp_path, made):
    kernel = node_of(tmp_path, MI300X, AmdCard(OTHER, number=2, render_minor=150, unique_id=0xC3))
    kfd = kernel.folder / "sys/class/kfd/kfd"
    for node, gpu in ((1, 4711), (2, 815)):
        (kfd / f"topology/nodes/{node}/gpu_id").write_text(f"{gpu}\n")
    for pid, used in ((99, "vram_4711"), (98, "vram_815")):
        (kfd / f"proc/{pid}").mkdir(parents=True)
        for name in ("vram_4711", "vram_815"):
            (kfd / f"proc/{pid}/{name}").write_text("8192\n" if name == used else "0\n")
    rig = made("amd", kernel, rule("all"))
    rig.allocate("u1", PASSED)
    with pytest.raises(HardwareError, match=r"open in 99\b") as refused:
        rig.prepare("u1", seconds=0.3)
    assert refused.value.code == "hardware.gpu-in-use"
    assert "98" not in str(refused.value)
    assert rig.driver_of(INSTINCT) == "amdgpu"


def test_a_program_that_uses_the_gpu_through_another_device_node_counts_as_a_user(tmp_path, made):
    rig = made("amd", node_of(tmp_path, MI300X), rule(INSTINCT))
    process = tmp_path / "node/proc/77"
    (process / "fd").mkdir(parents=True)
    (process / "fdinfo").mkdir()
    (process / "comm").write_text("weston\n")
    (tmp_path / "node/dev/dri/card9").write_text("")  # a lease, or a node of a container
    (process / "fd/5").symlink_to(tmp_path / "node/dev/dri/card9")
    (process / "fdinfo/5").write_text(f"pos:\t0\ndrm-driver:\tamdgpu\ndrm-pdev:\t{INSTINCT}\n")
    rig.allocate("u1", PASSED)
    with pytest.raises(HardwareError, match=r"77 \(weston\)"):
        rig.prepare("u1", seconds=0.3)


def test_another_vendors_gpu_is_not_offered_by_this_vendors_driver(tmp_path, made):
    kernel = node_of(tmp_path, MI300X)
    kernel.add_function("0000:41:00.0", "vfio-pci", 65, pci_id=0x233010DE)
    rig = made("amd", kernel, rule(INSTINCT, "0000:41:00.0"))
    assert offered(rig) == {WHOLE, PASSED}


# -- virtual functions


def test_amds_virtual_functions_are_offered_by_name_while_their_gpu_belongs_to_the_host_driver(tmp_path, made):
    kernel = node_of(tmp_path, MI300X)
    kernel._unbind(INSTINCT, "amdgpu")
    kernel.add_driver("gim")
    kernel._link_driver(INSTINCT, "gim")  # AMD's driver for hosts with MxGPU
    for number in (1, 2):
        kernel.add_virtual_function(f"0000:05:02.{number}", INSTINCT, "", 70 + number, pci_id=0x74B51002)
    rig = made("amd", kernel, rule("0000:05:02.1"), rule("all"))
    assert offered(rig) == {"gpu-0000-05-02-1-vfio"}
    device = rig.current.by_name["gpu-0000-05-02-1-vfio"]
    assert (device.attributes["isVF"], device.attributes["deviceID"]) == (True, "0x74b5")
    rig.allocate("u1", device.name)
    rig.prepare("u1")
    assert rig.driver_of("0000:05:02.1") == "vfio-pci"
    assert paths_of(rig, "u1") == {"/dev/vfio/71", "/dev/vfio/vfio"}
    rig.unprepare("u1")
    assert rig.driver_of("0000:05:02.1") == ""
    assert offered(rig) == {"gpu-0000-05-02-1-vfio"}


def virtual(address, number):
    return IntelCard(address, number=number, device_id=0x56C0, memory_bytes=3 << 30, physical=ARC)


def with_functions(tmp_path, **more):
    return new_intel(tmp_path / "node", FLEX, virtual(FIRST, 1), virtual(SECOND, 2), **more)


def test_named_virtual_functions_of_intel_are_offered_and_their_gpu_is_not_at_the_same_time(tmp_path, made):
    rig = made("intel", with_functions(tmp_path), rule(FIRST, SECOND))
    first, second = "gpu-0000-9a-00-1", "gpu-0000-9a-00-2"
    assert offered(rig) == {first, f"{first}-vfio", second, f"{second}-vfio"}
    assert offered(rig, UNCOUNTED) == {f"{first}-vfio", f"{second}-vfio"}
    assert fit_together(rig.current, f"{first}-vfio", second)
    assert not fit_together(rig.current, first, f"{first}-vfio")
    attributes = rig.current.by_name[f"{first}-vfio"].attributes
    assert (attributes["type"], attributes["family"]) == ("vfio", "Data Center Flex")
    assert attributes["physicalFunction"] == ARC
    rig.allocate("u1", f"{first}-vfio")
    rig.prepare("u1")
    assert (rig.driver_of(FIRST), rig.driver_of(ARC)) == ("vfio-pci", "xe")
    assert offered(rig) == {f"{first}-vfio", second, f"{second}-vfio"}
    rig.unprepare("u1")
    assert rig.driver_of(FIRST) == "xe"


def test_virtual_functions_of_a_gpu_that_a_claim_has_are_not_offered_until_that_ends(tmp_path, made):
    rig = made("intel", with_functions(tmp_path), rule(FIRST))
    rig.named._rules = type(rig.named._rules)(())  # allocated before the file named the functions
    rig.allocate("u1", "gpu-0000-9a-00-0")
    rig.prepare("u1")
    rig.named._rules = type(rig.named._rules)((rule(FIRST),))
    assert "gpu-0000-9a-00-0" in offered(rig)
    assert "gpu-0000-9a-00-1-vfio" not in offered(rig)
    assert rig.current.waits_for_claims
    rig.unprepare("u1")
    assert "gpu-0000-9a-00-0" not in offered(rig)
    assert "gpu-0000-9a-00-1-vfio" in offered(rig)


def test_a_gpu_with_virtual_functions_is_not_offered_to_virtual_machines_and_all_names_no_virtual_function(
    tmp_path, made
):
    rig = made("intel", with_functions(tmp_path), rule("all"))
    assert offered(rig) == {"gpu-0000-9a-00-0", "gpu-0000-9a-00-1", "gpu-0000-9a-00-2"}
    assert rig.problems() == {ARC: "hardware.has-virtual-functions"}


@pytest.mark.parametrize("spelling", ["xe-vfio-pci", "xe_vfio_pci"])
def test_a_virtual_function_of_intel_gets_the_variant_driver_where_it_is_loaded(tmp_path, made, spelling):
    kernel = with_functions(tmp_path, undriven=(SECOND,))
    kernel.add_driver(spelling)
    rig = made("intel", kernel, rule(FIRST), rule(SECOND, driver="vfio-pci"))
    for uid, name in (("u1", "gpu-0000-9a-00-1-vfio"), ("u2", "gpu-0000-9a-00-2-vfio")):
        rig.allocate(uid, name)
        rig.prepare(uid)
    assert (rig.driver_of(FIRST), rig.driver_of(SECOND)) == (spelling, "vfio-pci")
    rig.unprepare("u1")
    rig.unprepare("u2")
    assert (rig.driver_of(FIRST), rig.driver_of(SECOND)) == ("xe", "")


def test_a_whole_gpu_of_intel_gets_the_generic_driver(tmp_path, made):
    kernel = new_intel(tmp_path / "node", IntelCard(ARC))
    kernel.add_driver("xe-vfio-pci")
    rig = made("intel", kernel, rule(ARC))
    before = rig.current
    rig.allocate("u1", "gpu-0000-9a-00-0-vfio")
    rig.prepare("u1")
    assert rig.driver_of(ARC) == "vfio-pci"
    assert offered(rig) == {"gpu-0000-9a-00-0-vfio"}
    assert rig.problems() == {}
    rig.unprepare("u1")
    assert rig.current == before


def test_a_virtual_function_that_does_not_answer_is_not_given_back(tmp_path, made):
    rig = made("intel", with_functions(tmp_path), rule(FIRST))
    rig.allocate("u1", "gpu-0000-9a-00-1-vfio")
    rig.prepare("u1")
    Path(rig.roots.sys, "bus/pci/devices", FIRST, "config").write_bytes(b"\xff" * 64)
    with pytest.raises(HardwareError, match="does not answer after the reset"):
        rig.unprepare("u1")
    assert rig.driver_of(FIRST) == "vfio-pci"


def test_devices_shows_offline_what_machines_would_be_offered(tmp_path, capsys):
    kernel = node_of(tmp_path, MI300X)
    rules = tmp_path / "gpus.yaml"
    rules.write_text("version: passthrough/v1\ngpus:\n  - {nodes: [worker], devices: [all], use: either}\n")
    roots = kernel.roots(Roots(proc=str(kernel.folder / "proc")))
    command = ["devices", "--hardware", "amd", "--node-name", "worker", "-o", "json", "--passthrough", str(rules)]
    assert main.run([*command, "--sysfs-root", roots.sys, "--proc-root", roots.proc, "--dev-root", roots.dev]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [device["name"] for device in shown["devices"]] == [WHOLE, PASSED]
    assert shown["devices"][1]["attributes"]["type"] == {"string": "vfio"}
