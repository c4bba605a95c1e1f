"""Effects on one device: what is set, in which order, what is left alone, and which failures are tolerated."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.base.errors import HardwareError, SharingError
from dra_driver.base.wire import (
    ClientLimits,
    ComputeMode,
    Interval,
    MpsSettings,
    SharedDevice,
    TimeSlicingSettings,
    record_of_settings,
    settings_of_record,
)
from dra_driver.node.mps.client import MpsChannel
from dra_driver.node.prepare.steps.sharing import client_edits
from dra_driver.node.prepare.steps.sharing_modes import SharingEffects

GPU = SharedDevice("gpu-0", "GPU-0", 0, "0000:01:00.0")
PART = SharedDevice("mig-0", "GPU-0", 0, "0000:01:00.0", "MIG-0")
LONG, DEFAULT = TimeSlicingSettings(Interval.LONG), TimeSlicingSettings()
SOON = 5.0


class Node:
    """Hardware and supervisor in one, with a log of every change; `faults` has what a method raises, by its name."""

    def __init__(self) -> None:
        self.modes: dict[str, ComputeMode] = {}
        self.interval: Interval | None = Interval.DEFAULT
        self.log: list[str] = []
        self.faults: dict[str, Exception] = {}

    def compute_mode(self, device: SharedDevice, deadline_s: float) -> ComputeMode:
        self._fail("compute_mode")
        return self.modes.get(device.uuid, ComputeMode.DEFAULT)

    def set_compute_mode(self, device: SharedDevice, mode: ComputeMode, deadline_s: float) -> None:
        self._fail("set_compute_mode")
        self.log.append(f"{device.uuid} {mode}")
        self.modes[device.uuid] = mode

    def time_slice(self, device: SharedDevice, deadline_s: float) -> Interval | None:
        self.log.append("look")
        return self.interval

    def set_time_slice(self, device: SharedDevice, interval: Interval, deadline_s: float) -> None:
        self._fail("set_time_slice")
        self.log.append(str(interval))
        self.interval = interval

    def start(self, device: SharedDevice, settings: MpsSettings, *, deadline_s: float) -> MpsChannel:
        self._fail("start")
        self.log.append(f"start {device.uuid}")
        return MpsChannel("/pipe", "/shm")

    def stop(self, device: SharedDevice, *, deadline_s: float) -> None:
        self.log.append(f"stop {device.uuid}")

    def running(self, *, deadline_s: float) -> tuple[Any, ...]:
        self._fail("running")
        return ()

    def stop_unused(self, unused: Any, *, deadline_s: float) -> tuple[str, ...]:
        return ()

    def _fail(self, call: str) -> None:
        if call in self.faults:
            raise self.faults[call]


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def effects(node: Node) -> SharingEffects:
    return SharingEffects(node, node)


def hardware_fault(code: str) -> HardwareError:
    return HardwareError(code, "no")


def test_a_gpu_under_mps_is_exclusive_before_its_daemon_runs_and_until_it_has_ended(node, effects) -> None:
    found = effects.inspect(GPU, MpsSettings(), SOON)
    assert node.log == []
    assert effects.apply(GPU, MpsSettings(), found, SOON) == MpsChannel("/pipe", "/shm")
    effects.apply(GPU, MpsSettings(), found, SOON)
    effects.undo(GPU, MpsSettings(), found, SOON)
    effects.undo(GPU, MpsSettings(), found, SOON)
    assert node.log == [
        "GPU-0 EXCLUSIVE_PROCESS", "start GPU-0", "start GPU-0", "stop GPU-0", "GPU-0 DEFAULT", "stop GPU-0"
    ]  # fmt: skip


def test_for_a_partition_the_compute_mode_of_the_mig_device_is_set(node, effects) -> None:
    effects.apply(PART, MpsSettings(), effects.inspect(PART, MpsSettings(), SOON), SOON)
    assert node.log == ["MIG-0 EXCLUSIVE_PROCESS", "start MIG-0"]


def test_mps_starts_on_a_mig_device_whose_compute_mode_cannot_be_set_but_not_on_such_a_gpu(node, effects) -> None:
    node.faults["set_compute_mode"] = hardware_fault("compute-mode-unsupported")
    effects.apply(PART, MpsSettings(), effects.inspect(PART, MpsSettings(), SOON), SOON)
    assert node.log == ["start MIG-0"]
    with pytest.raises(HardwareError):
        effects.apply(GPU, MpsSettings(), effects.inspect(GPU, MpsSettings(), SOON), SOON)


@pytest.mark.parametrize("settings", [MpsSettings(), LONG])
def test_a_device_without_a_compute_mode_can_be_shared(node, effects, settings) -> None:
    node.faults["compute_mode"] = hardware_fault("compute-mode-unsupported")
    found = effects.inspect(GPU, settings, SOON)
    effects.apply(GPU, settings, found, SOON)
    effects.undo(GPU, settings, found, SOON)
    assert node.modes == {}


def test_undo_ignores_a_device_that_is_gone(node, effects) -> None:
    for settings, call in ((MpsSettings(), "compute_mode"), (LONG, "set_time_slice")):
        found = effects.inspect(GPU, settings, SOON)
        effects.apply(GPU, settings, found, SOON)
        node.faults[call] = hardware_fault("gpu-lost")
        effects.undo(GPU, settings, found, SOON)
        node.faults.clear()
        node.modes.clear()
    assert node.log[-1] == "Long"


def test_an_undo_that_fails_raises_its_error(node, effects) -> None:
    node.faults["set_time_slice"] = hardware_fault("nvidia-smi-failed")
    with pytest.raises(HardwareError):
        effects.undo(GPU, LONG, {}, SOON)


def test_a_second_claim_that_joins_changes_nothing(node, effects) -> None:
    effects.apply(GPU, LONG, {}, SOON)
    assert effects.join(GPU, LONG, {}, SOON) is None
    effects.undo(GPU, LONG, {}, SOON)
    assert node.log == ["Long", "Default"]


def test_the_time_slice_is_read_once_in_a_process_if_the_default_is_asked_for(node, effects) -> None:
    for _ in range(3):
        effects.apply(GPU, DEFAULT, {}, SOON)
        effects.undo(GPU, DEFAULT, {}, SOON)
    assert node.log == ["look"]


@pytest.mark.parametrize(("interval", "log"), [(Interval.SHORT, ["look", "Default"]), (None, ["look"])])
def test_the_default_replaces_an_interval_that_another_program_set(node, effects, interval, log) -> None:
    node.interval = interval
    effects.apply(GPU, DEFAULT, {}, SOON)
    assert node.log == log


def test_without_a_supervisor_or_support_for_time_slices_the_error_says_what_is_missing() -> None:
    plain = SharingEffects(object())
    with pytest.raises(SharingError, match="no MPS supervisor"):
        plain.inspect(GPU, MpsSettings(), SOON)
    with pytest.raises(SharingError, match="can't be set by this agent's hardware backend"):
        plain.apply(GPU, LONG, {}, SOON)
    assert plain.apply(GPU, DEFAULT, plain.inspect(GPU, DEFAULT, SOON), SOON) is None


LIMITS = st.builds(
    ClientLimits, st.none() | st.integers(1, 100), st.none() | st.integers(1, 1 << 18).map(lambda n: n << 20)
)


@given(LIMITS)
def test_a_clients_limits_become_the_variables_that_cuda_reads(limits: ClientLimits) -> None:
    edits = client_edits(MpsChannel("/p", "/s"), limits)
    env = dict(text.split("=", 1) for text in edits.env)
    assert [(m.host_path, m.container_path) for m in edits.mounts] == [("/p", "/tmp/nvidia-mps"), ("/s", "/dev/shm")]
    assert env.pop("CUDA_MPS_PIPE_DIRECTORY") == "/tmp/nvidia-mps"
    threads, memory = limits.active_thread_percentage, limits.pinned_memory_limit
    expected = {} if threads is None else {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(threads)}
    if memory is not None:
        expected["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={memory >> 20}M"
    assert env == expected


SETTINGS = st.builds(TimeSlicingSettings, st.sampled_from(Interval)) | st.builds(
    MpsSettings,
    st.none() | st.integers(0, 100),
    st.none() | st.integers(1 << 20, 1 << 40),
    st.dictionaries(st.text(max_size=4), st.integers(0)),
    st.booleans(),
    st.booleans(),
)


@given(SETTINGS)
def test_settings_are_read_back_from_the_ledger_as_they_were(settings) -> None:
    assert settings_of_record(record_of_settings(settings)) == settings
