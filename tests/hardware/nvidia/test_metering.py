"""What is measured of GPUs: the real vendor over the fake library, in the thread that also watches health."""

import threading

import pytest

from benchmarks import nvml_calls
from benchmarks.figures import Report
from dra_driver.base.errors import NodeError
from dra_driver.hardware.metered import Measure, MeterPlan
from dra_driver.hardware.port import Metered
from tests.support.fake_nvml import hgx_h100
from tests.support.thread_starts import no_thread_starts
from tests.support.waiting import until

ALL_LINKS = 4294967295


def measured(gpu):
    gpu.measure(
        clock_sm=1980, clock_memory=2619, temperature=54, util="93 41", util_encoder=0, util_decoder=7,
        memory_used=70 << 30, memory_reserved=1 << 30, gpm=1, gpm_1=87.5, gpm_2=80.0, gpm_5=44.0, gpm_20=2.0,
        fields={82: 61, 83: 7_000_000, 94: 3, 142: 1, 143: 2, 145: 0, 185: 312_500,
                f"138_{ALL_LINKS}": 1000, f"139_{ALL_LINKS}": 500},
    )  # fmt: skip


class Metering:
    """Two H100s, and a vendor that meters them."""

    def __init__(self, machine):
        self.machine = machine
        self.gpus = machine.add(*hgx_h100(2))
        self.rounds = threading.Semaphore(0)
        self.shared = frozenset()
        self.hardware = machine.hardware()

    def begin(self, *, with_profiling=True, beat_s=0.2, selected=frozenset()):
        plan = MeterPlan(beat_s, with_profiling, self.rounds.release, lambda: self.shared, selected)
        self.hardware.begin_metering(plan)
        until(lambda: not self.hardware.discover().waiting_for)

    def await_rounds(self, count):
        for _ in range(count):
            assert self.rounds.acquire(timeout=60)

    def values(self, gpu, gi_id=None):
        for one in self.hardware.meter_report().readings:
            if (one.gpu, one.gi_id) == (gpu.pci, gi_id):
                return one.values
        return None


@pytest.fixture
def metering(machine):
    return Metering(machine)


def test_a_round_reads_what_the_hardware_reports_and_leaves_out_what_it_does_not(metering):
    assert isinstance(metering.hardware, Metered)
    one, two = metering.gpus
    measured(one)
    two.measure(temperature=33)
    metering.machine.write()
    metering.begin()
    metering.await_rounds(4)
    found = metering.values(one)
    expected = {
        Measure.SM_CLOCK_MHZ: 1980, Measure.MEMORY_CLOCK_MHZ: 2619, Measure.TEMPERATURE_C: 54,
        Measure.MEMORY_TEMPERATURE_C: 61, Measure.POWER_W: 312.5, Measure.ENERGY_MJ_TOTAL: 7_000_000,
        Measure.PCIE_REPLAYS_TOTAL: 3, Measure.GPU_PERCENT: 93, Measure.MEMORY_COPY_PERCENT: 41,
        Measure.ENCODER_PERCENT: 0, Measure.DECODER_PERCENT: 7, Measure.MEMORY_USED_BYTES: 70 << 30,
        Measure.MEMORY_RESERVED_BYTES: 1 << 30, Measure.NVLINK_KIB_TOTAL: 1500,
        Measure.REMAPPED_CORRECTABLE_TOTAL: 1, Measure.REMAPPED_UNCORRECTABLE_TOTAL: 2, Measure.REMAP_FAILED: 0,
        Measure.GRAPHICS_RATIO: 0.875, Measure.SM_RATIO: 0.8, Measure.TENSOR_RATIO: 0.44,
        Measure.PCIE_SENT_BYTES_PER_S: 2 << 20,
    }  # fmt: skip
    assert {key: found.get(key) for key in expected} == pytest.approx(expected)
    of_memory = {Measure.MEMORY_TOTAL_BYTES, Measure.MEMORY_FREE_BYTES, Measure.MEMORY_USED_RATIO}
    assert set(found) - set(expected) == of_memory
    more = {Measure.TEMPERATURE_C, Measure.MEMORY_USED_BYTES, Measure.MEMORY_RESERVED_BYTES}
    assert set(metering.values(two)) == of_memory | more


def test_values_that_take_a_call_of_their_own_are_read_only_where_they_are_selected(metering):
    one, two = metering.gpus
    one.measure(
        fan_speed=35, pstate=2, power_limit_mw=650_000, power_enforced_mw=600_000, power_limits_mw="200000 700000",
        slowdown_temperature=89, sm_clock_max_mhz=1980, clock_reasons=4, pcie_link="5 16",
    )  # fmt: skip
    two.measure(temperature=33)
    metering.machine.write()
    expected = {
        Measure.FAN_PERCENT: 35, Measure.PERFORMANCE_STATE: 2, Measure.POWER_LIMIT_W: 650,
        Measure.POWER_LIMIT_LEAST_W: 200, Measure.POWER_LIMIT_MAX_W: 700, Measure.POWER_LIMIT_ENFORCED_W: 600,
        Measure.SLOWDOWN_TEMPERATURE_C: 89, Measure.SM_CLOCK_MAX_MHZ: 1980,
        Measure.CLOCK_REASONS: 4, Measure.PCIE_GENERATION: 5, Measure.PCIE_LANES: 16,
    }  # fmt: skip
    metering.begin()
    metering.await_rounds(2)
    assert not set(metering.values(one)) & set(expected)
    assert not metering.machine.calls("nvmlDeviceGetFanSpeed")
    metering.hardware.end_metering()
    metering.begin(selected=frozenset(expected) | {Measure.GPU_TEMPERATURE_MAX_C, "unheardOf"})
    metering.await_rounds(2)
    assert {key: metering.values(one).get(key) for key in expected} == pytest.approx(expected)
    assert Measure.GPU_TEMPERATURE_MAX_C not in metering.values(one)
    assert Measure.FAN_PERCENT not in metering.values(two)


def test_without_profiling_the_counters_are_not_touched(metering):
    measured(metering.gpus[0])
    metering.machine.write()
    metering.begin(with_profiling=False)
    metering.await_rounds(3)
    assert Measure.GRAPHICS_RATIO not in metering.values(metering.gpus[0])
    assert not metering.machine.calls("nvmlGpmQueryDeviceSupport")
    assert not metering.machine.calls("nvmlGpmSampleGet")


def test_in_mig_mode_each_instance_has_its_own_memory_and_profile_and_the_gpu_has_no_utilization(metering):
    one, _ = metering.gpus
    measured(one)
    first, second = (one.partition("3g.40gb", start)[0] for start in (0, 4))
    one.measure(**{f"memory_used_gi{first.gi}": 5 << 30, f"gpm_1_gi{first.gi}": 12.5, f"gpm_1_gi{second.gi}": 0})
    metering.machine.write()
    metering.begin()
    metering.await_rounds(4)
    assert Measure.GPU_PERCENT not in metering.values(one)
    assert metering.values(one)[Measure.TEMPERATURE_C] == 54
    of_first, of_second = metering.values(one, first.gi), metering.values(one, second.gi)
    assert (of_first[Measure.MEMORY_USED_BYTES], of_first[Measure.GRAPHICS_RATIO]) == (5 << 30, 0.125)
    assert (of_second[Measure.MEMORY_USED_BYTES], of_second[Measure.GRAPHICS_RATIO]) == (0, 0)
    assert Measure.TEMPERATURE_C not in of_first


def test_an_instance_that_is_gone_has_no_reading_and_its_id_can_be_profiled_again(metering):
    one, _ = metering.gpus
    measured(one)
    (gone,) = one.partition("3g.40gb", 0)
    one.measure(**{f"gpm_1_gi{gone.gi}": 50})
    metering.machine.write()
    metering.begin()
    until(lambda: (metering.values(one, gone.gi) or {}).get(Measure.GRAPHICS_RATIO) == 0.5)
    one.unpartition()
    metering.machine.write()
    until(lambda: metering.values(one, gone.gi) is None)
    one.partition("1g.10gb", 0)
    metering.machine.write()
    until(lambda: (metering.values(one, gone.gi) or {}).get(Measure.GRAPHICS_RATIO) == 0.5)


def test_processes_are_listed_only_for_shared_gpus(metering):
    one, two = metering.gpus
    measured(one)
    one.processes.append(("compute", 41, -1, -1, 3 << 30))
    one.processes.append(("mps", 42, -1, -1, 1 << 30))
    one.measure(process_util_41=25)
    two.processes.append(("compute", 43, -1, -1, 1))
    metering.machine.write()
    metering.shared = frozenset([one.pci])
    metering.begin()
    metering.await_rounds(2)
    by_gpu = {reading.gpu: reading.processes for reading in metering.hardware.meter_report().readings}
    assert [(use.pid, use.memory_bytes, use.sm_percent) for use in by_gpu[one.pci]] == [
        (41, 3 << 30, 25.0),
        (42, 1 << 30, 0.0),
    ]
    assert by_gpu[two.pci] is None


def test_a_hanging_call_leaves_the_readings_as_they_are_and_the_report_available(metering):
    one, _ = metering.gpus
    measured(one)
    metering.machine.write()
    metering.begin()
    metering.await_rounds(2)
    one.hang("nvmlDeviceGetFieldValues")
    metering.machine.write()
    until(lambda: metering.hardware._use.session.watch._worker.waits_for()[0] == "nvmlDeviceGetFieldValues")
    before = metering.hardware.meter_report()
    assert metering.values(one)[Measure.TEMPERATURE_C] == 54
    one.heal()
    one.measure(temperature=60)
    metering.machine.write()
    until(lambda: metering.values(one)[Measure.TEMPERATURE_C] == 60)
    newest = {reading.gpu: reading.at for reading in metering.hardware.meter_report().readings}
    assert newest[one.pci] > {reading.gpu: reading.at for reading in before.readings}[one.pci]


def test_a_lost_gpu_keeps_its_last_reading_while_the_other_is_read_on(metering):
    one, two = metering.gpus
    for gpu in (one, two):
        measured(gpu)
    metering.machine.write()
    metering.begin()
    metering.await_rounds(1)
    one.is_lost = True
    two.measure(temperature=71)
    metering.machine.write()
    until(lambda: metering.values(two)[Measure.TEMPERATURE_C] == 71)
    assert metering.values(one)[Measure.TEMPERATURE_C] == 54


def test_xids_are_counted_by_gpu_and_instance_and_the_newest_is_kept(metering):
    one, two = metering.gpus
    for gpu in (one, two):
        gpu.report_health()
    metering.machine.write()
    metering.begin()
    metering.await_rounds(1)
    one.xid(13)
    one.xid(13)
    one.xid(31)
    two.xid(94, gi=3)
    metering.machine.write()
    until(lambda: len(metering.hardware.meter_report().xids) == 2)
    until(lambda: metering.hardware.meter_report().xids[one.pci, None] == {13: 2, 31: 1})
    assert metering.hardware.meter_report().last_xids == {(one.pci, None): 31, (two.pci, 3): 94}


def test_health_and_metering_share_one_session_and_one_thread_and_closing_releases_the_library(metering):
    one, _ = metering.gpus
    one.report_health(recovery_action=0)
    measured(one)
    metering.machine.write()
    metering.hardware.watch_health(lambda: None, log_position=-1)
    metering.hardware.discover()
    watch = metering.hardware._use.session.watch
    metering.begin()
    metering.await_rounds(1)
    assert metering.hardware._use.session.watch is watch
    assert metering.machine.calls("nvmlInitWithFlags") == 1
    assert [thread.name for thread in threading.enumerate()].count("health") == 1
    metering.hardware.close()
    assert metering.machine.calls("nvmlShutdown") == 1
    assert metering.machine.calls("nvmlGpmSampleAlloc") == metering.machine.calls("nvmlGpmSampleFree") > 0
    metering.hardware.discover()
    metering.await_rounds(1)


def test_metering_goes_on_when_health_ends_and_nothing_runs_when_both_have(metering):
    measured(metering.gpus[0])
    metering.machine.write()
    metering.hardware.watch_health(lambda: None, log_position=-1)
    metering.begin()
    metering.await_rounds(1)
    metering.hardware.end_health()
    while metering.rounds.acquire(blocking=False):
        pass
    metering.await_rounds(3)
    metering.hardware.end_metering()
    assert metering.hardware._use.session.watch.end(60)
    assert metering.hardware.meter_report().readings == ()


def test_what_each_call_costs_can_be_measured(metering, monkeypatch, capsys):
    measured(metering.gpus[0])
    metering.machine.write()
    monkeypatch.setattr(nvml_calls, "ROUNDS", 3)
    # By its bare name the loader would return the copy of an earlier test of this process, with that test's GPUs.
    monkeypatch.setenv("NVML_LIBRARY", str(metering.machine.library))
    report = Report()
    nvml_calls.run(report)
    figures = {one.name: one.value for one in report.figures}
    assert {"a round of all GPUs p99", "nvmlDeviceGetFieldValues p50", "nvmlGpmSampleGet p50"} <= set(figures)
    assert all(value >= 0 for value in figures.values())
    monkeypatch.setenv("NVML_LIBRARY", "/nonexistent/libnvidia-ml.so.1")
    nvml_calls.run(Report())
    assert "no NVML here" in capsys.readouterr().out


def test_a_session_that_could_not_be_watched_is_opened_again(metering):
    metering.machine.write()
    metering.hardware.watch_health(lambda: None, log_position=-1)
    with no_thread_starts("health"), pytest.raises(NodeError, match="health can't be started"):
        metering.hardware.discover()
    assert metering.machine.calls("nvmlShutdown") == 1
    metering.hardware.discover()
    assert [thread.name for thread in threading.enumerate()].count("health") == 1
