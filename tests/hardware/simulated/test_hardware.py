import shutil
import subprocess
import sys

import pytest
import yaml

from dra_driver.base.errors import HardwareError, InputError, Retry
from dra_driver.hardware.facts import DeviceNode, merge
from dra_driver.hardware.port import Hardware, ProcessLister, Roots
from dra_driver.hardware.simulated import SimulatedHardware
from dra_driver.hardware.simulated.profile import FOLDER
from dra_driver.node.devices.build import build_inventory


@pytest.fixture
def machine(tmp_path):
    """A demo node whose profile can be changed, as an administrator or a fault would change the hardware."""

    class Machine:
        path = tmp_path / "node.yaml"

        def __init__(self):
            shutil.copy(FOLDER / "demo-h100.yaml", self.path)
            self.hardware = SimulatedHardware(self.path, Roots(), node_name="node-a")

        def change(self, edit):
            document = yaml.safe_load(self.path.read_text())
            edit(document)
            self.path.write_text(yaml.safe_dump(document))

        def names(self):
            return {device.name for device in build_inventory(self.hardware.discover()).devices}

    return Machine()


def test_simulated_hardware_implements_the_port_and_lists_processes(machine):
    hardware: Hardware = machine.hardware
    assert hardware.vendor == "simulated"
    assert isinstance(hardware, ProcessLister)
    assert hardware.is_present()


def test_gpus_are_in_pci_order_and_have_the_units_of_facts(machine):
    facts = machine.hardware.discover()
    assert [gpu.pci_address for gpu in facts.gpus] == sorted(gpu.pci_address for gpu in facts.gpus)
    gpu = facts.gpus[0]
    assert gpu.memory_bytes == 81559 << 20
    assert gpu.memory_bandwidth_bytes_per_s == 3350 * 10**9
    assert (gpu.compute_capability, facts.runtime_version) == ("9.0.0", "13.0.0")
    assert gpu.nvlink_count == 18
    assert len({gpu.link_domain for gpu in facts.gpus}) == 1


def test_partitions_take_their_figures_from_the_model(machine):
    cut = next(gpu for gpu in machine.hardware.discover().gpus if gpu.mig_enabled)
    part = next(part for part in cut.partitions if part.profile == "3g.40gb")
    assert (part.start, part.size, part.gi_profile_id) == (4, 4, 9)
    assert (part.memory_bytes, part.multiprocessors, part.copy_engines) == (40448 << 20, 60, 3)
    assert len({p.gi_id for p in cut.partitions}) == len(cut.partitions)


def test_a_restart_finds_the_same_hardware_and_another_node_other_hardware(machine):
    again = SimulatedHardware(machine.path, Roots(), node_name="node-a").discover()
    other = SimulatedHardware(machine.path, Roots(), node_name="node-b").discover()
    assert again == machine.hardware.discover()
    uuids = [
        {gpu.uuid for gpu in facts.gpus} | {p.uuid for gpu in facts.gpus for p in gpu.partitions}
        for facts in (again, other)
    ]
    assert len(uuids[0]) == 16
    assert not uuids[0] & uuids[1]
    assert again.gpus[0].link_domain != other.gpus[0].link_domain


def test_trays_of_one_rack_share_their_link_domain():
    domains = {SimulatedHardware("gb200-tray", Roots(), node_name=node).discover().gpus[0].link_domain for node in "ab"}
    assert domains == {"5a3c1f0e-7b42-4d8a-9c61-2e0f8d7b6a54.1"}


def test_cards_without_nvlink_have_neither_domain_nor_count():
    gpu = SimulatedHardware("l40s", Roots(), node_name="n").discover().gpus[0]
    assert (gpu.link_domain, gpu.nvlink_count) == (None, None)


def test_the_fingerprint_changes_only_with_the_file(machine):
    before = machine.hardware.fingerprint()
    assert machine.hardware.fingerprint() == before
    machine.change(lambda d: d.update(driverVersion="590.44.1"))
    assert machine.hardware.fingerprint() != before
    assert machine.hardware.discover().driver_version == "590.44.1"


def test_a_gpu_taken_out_of_the_file_is_gone_and_others_keep_their_names(machine):
    before = machine.names()
    machine.change(lambda d: d["gpus"].pop(0))
    assert machine.names() == before - {"gpu-0000-1b-00-0"}


def test_a_lost_gpu_is_dropped_with_a_problem(machine):
    machine.change(lambda d: d["gpus"][0].update(lost=True))
    facts = machine.hardware.discover()
    assert [(p.code, p.subject) for p in facts.problems] == [("hardware.gpu-lost", "0000:1b:00.0")]
    assert len(facts.gpus) == 7
    assert machine.hardware.is_present()


def test_a_gpu_added_late_appears(machine):
    before = machine.names()
    machine.change(lambda d: d["gpus"].append({"pci": "0000:ee:00.0"}))
    assert machine.names() == before | {"gpu-0000-ee-00-0"}


def test_the_partitions_of_a_gpu_can_be_changed(machine):
    machine.change(lambda d: d["gpus"][6].update(mig=[{"profile": "7g.80gb", "start": 0}]))
    assert "gpu-0000-d1-00-0-mig-7g80gb-0-0" in machine.names()
    machine.change(lambda d: d["gpus"][6].pop("mig"))
    assert "gpu-0000-d1-00-0" in machine.names()


def test_hardware_that_does_not_answer_says_what_it_waits_for(machine):
    machine.change(lambda d: d.update(waitingFor="the NVIDIA kernel driver to be loaded"))
    facts = machine.hardware.discover()
    assert (facts.gpus, facts.waiting_for) == ((), "the NVIDIA kernel driver to be loaded")
    assert machine.hardware.is_present()


def test_a_profile_without_gpus_is_a_node_without_hardware(machine):
    machine.change(lambda d: d.update(gpus=[]))
    assert not machine.hardware.is_present()
    assert machine.hardware.discover().gpus == ()


def test_a_half_written_profile_is_an_error_until_it_is_whole(machine):
    whole = machine.path.read_text()
    machine.path.write_text(whole[: len(whole) // 2] + "\n : [")
    with pytest.raises(HardwareError) as caught:
        machine.hardware.discover()
    assert (caught.value.code, caught.value.retry) == ("hardware.profile-unusable", Retry.LATER)
    machine.path.write_text(whole)
    assert len(machine.hardware.discover().gpus) == 8


def test_a_profile_that_vanished_is_an_error(machine):
    machine.path.unlink()
    with pytest.raises(HardwareError, match="neither a shipped profile nor a file"):
        machine.hardware.discover()


def test_a_faulty_profile_is_refused_at_once(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("gpus: [{}]")
    with pytest.raises(InputError, match=r"gpus\[0\].pci: missing"):
        SimulatedHardware(path, Roots(), node_name="n")


def test_a_whole_gpu_gets_nodes_that_any_runtime_can_make(machine):
    gpu = machine.hardware.discover().gpus[0]
    edits = merge([machine.hardware.common_edits(), machine.hardware.device_edits(gpu, None)])
    assert [node.path for node in edits.device_nodes] == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"]
    for node in edits.device_nodes:
        assert node == DeviceNode(node.path, major=1, minor=3, type="c", permissions="rw", file_mode=0o666)
    assert edits.env == ("NVIDIA_VISIBLE_DEVICES=void",)
    assert not edits.mounts


def test_a_partition_gets_its_gpus_node_and_two_capability_nodes_of_its_own(machine):
    seen = set()
    for gpu in machine.hardware.discover().gpus:
        for part in gpu.partitions:
            paths = [node.path for node in machine.hardware.device_edits(gpu, part).device_nodes]
            assert paths[0] == f"/dev/nvidia{gpu.minor}"
            assert len(paths) == 3
            assert all(path.startswith("/dev/nvidia-caps/nvidia-cap") for path in paths[1:])
            assert not seen & set(paths[1:])
            seen.update(paths[1:])
    assert len(seen) == 16


def test_processes_are_those_that_the_profile_lists(machine):
    gpu = machine.hardware.discover().gpus[0]
    assert machine.hardware.processes(gpu, None) == ()
    machine.change(lambda d: d["gpus"][0].update(processes=[4711]))
    assert machine.hardware.processes(gpu, None) == (4711,)


def test_a_node_may_have_64_gpus(tmp_path):
    path = tmp_path / "large.yaml"
    gpus = [{"pci": f"0000:{bus:02x}:00.0"} for bus in range(64)]
    path.write_text(yaml.safe_dump({"about": "64 GPUs", "gpuDefaults": {"model": "h200"}, "gpus": gpus}))
    assert len(SimulatedHardware(path, Roots(), node_name="n").discover().gpus) == 64


def test_yaml_is_loaded_only_when_simulated_hardware_is_chosen():
    script = (
        "import sys\n"
        "from dra_driver.hardware.choose import choose\n"
        "from dra_driver.hardware.port import Roots\n"
        "import dra_driver.node.devices.build, dra_driver.node.devices.describing\n"
        "assert 'yaml' not in sys.modules\n"
        "hardware = choose('simulated:demo-h100', Roots(), node_name='n')\n"
        "assert 'yaml' in sys.modules\n"
        "heavy = {'pydantic', 'click', 'rich', 'celpy', 'kubernetes', 'grpc', 'pynvml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert len(hardware.discover().gpus) == 8\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
