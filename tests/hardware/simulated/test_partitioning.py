"""MIG on demand on simulated hardware, which keeps its state in a file that outlives the agent."""

import json
import shutil
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.base.errors import HardwareError, Retry
from dra_driver.hardware.port import Partitionable, Roots
from dra_driver.hardware.simulated import SimulatedHardware, partitioning
from dra_driver.hardware.simulated.partitioning import FILE_NAME
from dra_driver.hardware.simulated.profile import FOLDER


class Machine:
    """A DGX H100 whose profile can be changed while it is in use."""

    def __init__(self, folder, shipped="dgx-h100"):
        self.path, self.state, self.proc = folder / "node.yaml", folder / "state", folder / "proc"
        shutil.copy(FOLDER / f"{shipped}.yaml", self.path)
        self.boot("0d6f5f0c-3f0e-4f43-a3a5-1d0c3c2f7b11")
        self.hardware = self.start()

    def boot(self, boot_id):
        path = self.proc / "sys/kernel/random/boot_id"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(boot_id + "\n")

    def start(self):
        """Return the hardware as a newly started agent sees it."""
        return SimulatedHardware(self.path, Roots(proc=str(self.proc)), node_name="node-a", state_dir=self.state)

    def change(self, edit):
        document = yaml.safe_load(self.path.read_text())
        edit(document)
        new = self.path.with_suffix(".new")
        new.write_text(yaml.safe_dump(document))
        new.replace(self.path)

    def gpu(self, index=0):
        return self.hardware.discover().gpus[index]

    def create(self, name, start, index=0, deadline_s=5.0):
        gpu = self.gpu(index)
        return self.hardware.create_partition(gpu, profile(gpu, name), start, deadline_s).facts


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture
def mig_machine(machine):
    """A machine whose first GPU is in MIG mode."""
    machine.hardware.set_mig_mode(machine.gpu(), True, 1)
    return machine


def profile(gpu, name):
    return next(profile for profile in gpu.mig_profiles if profile.name == name)


def refusal(call, *args):
    with pytest.raises(HardwareError) as caught:
        call(*args)
    return caught.value.code, caught.value.retry


def test_simulated_hardware_is_partitionable(machine):
    assert isinstance(machine.hardware, Partitionable)


def test_an_h100_offers_what_nvidia_publishes(machine):
    gpu = machine.gpu()
    names = {"1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"}
    assert {profile.name for profile in gpu.mig_profiles} == names
    assert sum(len(profile.starts) for profile in gpu.mig_profiles) == 25
    assert gpu.mig_toggles_without_reset
    two = profile(gpu, "2g.20gb")
    assert (two.gi_profile_id, two.slices, two.size, two.starts, two.max_instances) == (14, 2, 2, (0, 2, 4), 3)
    assert (two.memory_bytes, two.multiprocessors, two.copy_engines) == (20096 << 20, 32, 2)


def test_a_gpu_that_cannot_be_partitioned_offers_nothing(tmp_path):
    gpu = Machine(tmp_path, "l40s").gpu()
    assert (gpu.mig_profiles, gpu.mig_toggles_without_reset) == ((), False)


def test_a_partition_is_made_where_it_is_asked_for_and_is_found_by_discovery(mig_machine):
    made = mig_machine.create("2g.20gb", 4)
    assert (made.profile, made.start, made.size, made.gi_profile_id) == ("2g.20gb", 4, 2, 14)
    assert mig_machine.gpu().partitions == (made,) == mig_machine.hardware.partitions_now(mig_machine.gpu())


def test_creating_a_partition_twice_creates_it_once(mig_machine):
    assert mig_machine.create("1g.10gb", 2) == mig_machine.create("1g.10gb", 2)
    assert len(mig_machine.gpu().partitions) == 1


def test_partitions_outlive_the_agent_but_not_the_boot(mig_machine):
    made = mig_machine.create("3g.40gb", 4)
    assert mig_machine.start().discover().gpus[0].partitions == (made,)
    mig_machine.boot("9e0a3f8e-9d12-4a51-8a3b-7f6e5d4c3b2a")
    fresh = mig_machine.start().discover().gpus[0]
    assert (fresh.partitions, fresh.mig_enabled) == ((), False)


def test_two_agents_see_the_same_hardware(mig_machine):
    other = mig_machine.start()
    before = other.fingerprint()
    made = mig_machine.create("1g.20gb", 0)
    assert other.fingerprint() != before
    assert other.discover().gpus[0].partitions == (made,)


def test_capability_nodes_are_there_as_long_as_the_partition(mig_machine):
    made = mig_machine.create("1g.10gb", 0)
    paths = [node.path for node in mig_machine.hardware.device_edits(mig_machine.gpu(), made).device_nodes]
    assert len(set(paths)) == 3
    mig_machine.hardware.destroy_partition(mig_machine.gpu(), made.uuid, 1)
    assert refusal(mig_machine.hardware.device_edits, mig_machine.gpu(), made) == ("hardware.node-missing", Retry.LATER)


def test_destroying_leaves_nothing_and_may_be_repeated(mig_machine):
    made = mig_machine.create("7g.80gb", 0)
    for _ in range(2):
        mig_machine.hardware.destroy_partition(mig_machine.gpu(), made.uuid, 1)
    assert mig_machine.gpu().partitions == ()
    assert mig_machine.gpu().mig_enabled


def test_a_partition_that_does_not_fit_beside_the_others_is_refused(mig_machine):
    mig_machine.create("3g.40gb", 0)
    assert refusal(mig_machine.create, "1g.10gb", 3) == ("hardware.insufficient-resources", Retry.LATER)
    assert refusal(mig_machine.create, "2g.20gb", 3) == (
        "hardware.insufficient-resources",
        Retry.LATER,
    )  # no such start
    mig_machine.create("1g.10gb+me", 4)
    assert refusal(mig_machine.create, "1g.10gb+me", 5) == (
        "hardware.insufficient-resources",
        Retry.LATER,
    )  # one at most


def test_no_partition_is_created_while_mig_mode_is_off(machine):
    assert refusal(machine.create, "1g.10gb", 0) == ("hardware.mig-off", Retry.LATER)


def test_mig_mode_is_switched_on_and_off_again_without_a_trace(machine):
    before = machine.gpu()
    machine.hardware.set_mig_mode(before, True, 1)
    assert machine.gpu().mig_enabled
    machine.hardware.set_mig_mode(before, True, 1)
    machine.hardware.set_mig_mode(before, False, 1)
    assert machine.gpu() == before


def test_mig_mode_is_not_switched_off_under_a_partition(mig_machine):
    mig_machine.create("1g.10gb", 0)
    assert refusal(mig_machine.hardware.set_mig_mode, mig_machine.gpu(), False, 1) == (
        "hardware.partition-in-use",
        Retry.LATER,
    )


def test_mig_mode_of_an_ampere_gpu_needs_a_reset(tmp_path):
    machine = Machine(tmp_path, "dgx-a100")
    gpu = machine.gpu()
    assert gpu.mig_profiles
    assert not gpu.mig_toggles_without_reset
    assert refusal(machine.hardware.set_mig_mode, gpu, True, 1) == ("hardware.reset-needed", Retry.NEVER)


def test_a_partition_is_destroyed_only_after_its_processes_have_ended(mig_machine):
    made = mig_machine.create("1g.10gb", 0)
    mig_machine.change(lambda d: d["gpus"][0].update(processes=[4711]))
    destroy = mig_machine.hardware.destroy_partition
    assert refusal(destroy, mig_machine.gpu(), made.uuid, 0.05) == ("hardware.partition-in-use", Retry.LATER)
    timer = threading.Timer(0.1, lambda: mig_machine.change(lambda d: d["gpus"][0].update(processes=[])))
    timer.start()
    destroy(mig_machine.gpu(), made.uuid, 10)
    timer.join()
    assert mig_machine.gpu().partitions == ()


def test_mig_mode_is_not_switched_under_a_process(machine):
    machine.change(lambda d: d["gpus"][0].update(processes=[4711]))
    refused = refusal(machine.hardware.set_mig_mode, machine.gpu(), True, 0.05)
    assert refused == ("hardware.gpu-in-use", Retry.LATER)


def test_calls_about_a_lost_gpu_are_refused(mig_machine):
    gpu = mig_machine.gpu()
    mig_machine.change(lambda d: d["gpus"][0].update(lost=True))
    for call in (
        lambda: mig_machine.hardware.create_partition(gpu, profile(gpu, "1g.10gb"), 0, 1),
        lambda: mig_machine.hardware.set_mig_mode(gpu, False, 1),
        lambda: mig_machine.hardware.partitions_now(gpu),
    ):
        assert refusal(call) == ("hardware.gpu-lost", Retry.LATER)


def test_a_slow_gpu_delays_no_other(machine):
    machine.change(lambda d: d["gpus"][0].update(mig=[], migDelayMs=400))
    machine.change(lambda d: d["gpus"][1].update(mig=[]))
    slow = threading.Thread(target=machine.create, args=("1g.10gb", 0, 0))
    slow.start()
    machine.create("1g.10gb", 0, 1)
    assert slow.is_alive()
    slow.join()
    assert len(machine.gpu(0).partitions) == len(machine.gpu(1).partitions) == 1


def test_eight_gpus_are_partitioned_at_the_same_time(machine, monkeypatch):
    together = threading.Barrier(8)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: together.wait(60))
    monkeypatch.setattr(partitioning, "time", clock)
    machine.change(lambda d: d["gpuDefaults"].update(mig=[], migDelayMs=200))
    threads = [threading.Thread(target=machine.create, args=("1g.10gb", 0, index)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(gpu.partitions) for gpu in machine.hardware.discover().gpus] == [1] * 8


def test_a_call_that_does_not_end_in_time_changes_nothing(machine):
    machine.change(lambda d: d["gpus"][0].update(mig=[], migDelayMs=400_000))
    refused = refusal(machine.create, "1g.10gb", 0, 0, 0.05)
    assert refused == ("hardware.not-answering", Retry.LATER)
    assert machine.gpu().partitions == ()


def test_an_administrators_partition_can_be_destroyed_and_made_again(machine):
    machine.change(lambda d: d["gpus"][0].update(mig=[{"profile": "3g.40gb", "start": 4}]))
    (given_by_admin,) = machine.gpu().partitions
    machine.hardware.destroy_partition(machine.gpu(), given_by_admin.uuid, 1)
    assert machine.gpu().partitions == ()
    assert machine.create("3g.40gb", 4) == given_by_admin


def test_an_administrators_new_partition_replaces_ours_in_its_place(mig_machine):
    kept, lost = mig_machine.create("1g.10gb", 0), mig_machine.create("2g.20gb", 4)
    mig_machine.change(lambda d: d["gpus"][0].update(mig=[{"profile": "3g.40gb", "start": 4}]))
    assert [p.profile for p in mig_machine.gpu().partitions] == ["1g.10gb", "3g.40gb"]
    assert kept in mig_machine.gpu().partitions
    assert lost not in mig_machine.gpu().partitions


def test_without_a_folder_partitions_live_in_memory(tmp_path):
    hardware = SimulatedHardware("dgx-h100", Roots(), node_name="n")
    gpu = hardware.discover().gpus[0]
    before = hardware.fingerprint()
    hardware.set_mig_mode(gpu, True, 1)
    hardware.create_partition(gpu, profile(gpu, "1g.10gb"), 0, 1)
    assert hardware.fingerprint() != before
    assert len(hardware.discover().gpus[0].partitions) == 1


def test_a_state_file_that_a_crash_left_half_written_is_ignored(mig_machine):
    mig_machine.create("1g.10gb", 0)
    (mig_machine.state / FILE_NAME).with_suffix(".4711.new").write_text('{"bootId": "')
    assert len(mig_machine.start().discover().gpus[0].partitions) == 1
    assert json.loads((mig_machine.state / FILE_NAME).read_text())["gpus"]


def test_a_profile_that_the_gpu_does_not_have_is_refused(mig_machine):
    unknown = replace(mig_machine.gpu().mig_profiles[0], name="1g.5gb")
    code, _ = refusal(mig_machine.hardware.create_partition, mig_machine.gpu(), unknown, 0, 1)
    assert code == "hardware.no-profile"


choices = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 7), st.booleans()), max_size=25)


@settings(max_examples=60, deadline=None)
@given(choices)
def test_partitions_never_overlap_and_destroying_them_all_restores_the_gpu(choices):
    hardware = SimulatedHardware("dgx-h100", Roots(), node_name="n")
    gpu = hardware.discover().gpus[0]
    hardware.set_mig_mode(gpu, True, 1)
    refusals = set()
    for index, start, is_destroyed in choices:
        try:
            made = hardware.create_partition(gpu, gpu.mig_profiles[index], start, 1).facts
        except HardwareError as error:
            refusals.add(error.code)
            continue
        if is_destroyed:
            hardware.destroy_partition(gpu, made.uuid, 1)
        slices = [i for p in hardware.partitions_now(gpu) for i in range(p.start, p.start + p.size)]
        assert len(slices) == len(set(slices))
    assert refusals <= {"hardware.insufficient-resources"}
    for partition in hardware.partitions_now(gpu):
        hardware.destroy_partition(gpu, partition.uuid, 1)
    hardware.set_mig_mode(gpu, False, 1)
    assert hardware.discover().gpus[0] == gpu


def test_mig_beside_whole_gpus_is_a_problem_with_a_driver_that_hangs(machine):
    machine.change(lambda d: d.update(driverVersion="570.133.20"))
    assert machine.hardware.discover().problems == ()
    machine.hardware.set_mig_mode(machine.gpu(), True, 1)
    (problem,) = machine.hardware.discover().problems
    assert (problem.code, problem.subject) == ("hardware.mixed-mig-driver", "node")
    assert "580.65.06" in problem.message
