"""Real processes with a fake libcuda.so.1: each way in which a test of a device can end."""

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.base.errors import UsageError
from dra_driver.hardware.nvidia.hardware import NvidiaHardware
from dra_driver.hardware.port import Roots
from dra_driver.node.health import validator as module
from dra_driver.node.health.validation import ValidationLevel, ValidationVerdict, command_of
from dra_driver.node.health.validator import Validator
from dra_driver.node.ledger.locks import ValidationLock
from tests.support.facts import FULL_GPU, PARTITION
from tests.support.fake_cuda import FakeCuda
from tests.support.waiting import unhindered, until

PASSED, FAILED, COULD_NOT_RUN = ValidationVerdict
COMPUTE, THOROUGH, COMMAND = ValidationLevel.COMPUTE, ValidationLevel.THOROUGH, ValidationLevel.COMMAND
GPU, ONE = FULL_GPU, FULL_GPU.pci_address

pytestmark = pytest.mark.gcc


class Holders:
    """Answers as the test sets it."""

    holder = claims = fault = ""

    def holder_of(self, gpu, partition):
        return self.holder

    def claims_of(self, device):
        return self.claims

    def fault_of(self, gpu, partition):
        return self.fault


class Bench:
    """A validator over the fake library below a driver root."""

    def __init__(self, folder: Path):
        root = folder / "root"
        self.cuda = FakeCuda(root / "usr/lib64")
        self.cuda.set(GPU.uuid, ONE)
        self.holders, self.folder = Holders(), folder
        self.hardware = NvidiaHardware(Roots(driver=str(root), driver_mount=str(root)))
        self.steps: list[str] = []

    def validator(self, *, command=(), **seconds):
        deadlines = dict.fromkeys((COMPUTE, THOROUGH, COMMAND), 60.0) | {
            ValidationLevel[name.upper()]: value for name, value in seconds.items()
        }
        turn = ValidationLock(self.folder)
        return Validator(self.hardware, turn, self.holders, command=command, deadlines=deadlines)

    def validate(self, mode="passes", level=COMPUTE, device=GPU, part=None, **seconds):
        self.cuda.set((part or device).uuid, ONE, mode)
        return self.validator(**seconds).validate(device, part, level, self.steps.append)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def test_a_good_device_passes_and_no_context_is_left(bench):
    found = bench.validate()
    assert (found.verdict, found.reason) == (PASSED, "")
    assert set(found.figures) == {"contextMs", "totalMs"}
    assert bench.steps == ["library", "init", "context", "memory", "kernel", "end"]
    assert bench.cuda.calls("dra_mix") == [GPU.uuid]
    assert bench.cuda.contexts() == []


@pytest.mark.parametrize(
    ("mode", "verdict", "reason"),
    [
        ("corrupts", FAILED, "wrong-data"),
        ("miscomputes", FAILED, "wrong-data"),
        ("crashes", FAILED, "crash"),
        ("context-214", FAILED, "cuda-214"),
        ("launch-700", FAILED, "cuda-700"),
        ("launch-719", FAILED, "cuda-719"),
        ("launch-999", FAILED, "cuda-999"),
        ("context-999", COULD_NOT_RUN, "cuda-999"),
        ("802", COULD_NOT_RUN, "not-ready"),
        ("context-2", COULD_NOT_RUN, "memory"),
        ("context-46", COULD_NOT_RUN, "busy"),
        ("jit", COULD_NOT_RUN, "jit"),
    ],
)
def test_only_an_error_of_the_device_itself_is_a_failure(bench, mode, verdict, reason):
    found = bench.validate(mode)
    assert (found.verdict, found.reason) == (verdict, reason), found
    assert bench.cuda.contexts() == []


def test_a_device_that_hangs_has_failed_when_the_deadline_is_over(bench):
    found = bench.validate("hangs", compute=3.0)  # enough time to come that far even on a busy machine
    assert (found.verdict, found.reason) == (FAILED, "hang")
    assert "context" in found.detail
    assert bench.cuda.contexts() == []


def test_a_process_that_takes_a_gibibyte_could_not_run(bench):
    found = bench.validate("hoards")
    assert (found.verdict, found.reason) == (COULD_NOT_RUN, "memory")


def test_without_a_cgroup_the_memory_of_the_process_itself_is_limited(bench, monkeypatch):
    monkeypatch.setattr(module, "make_cgroup", lambda limit: None)
    found = bench.validate("hoards")
    assert (found.verdict, found.reason) == (COULD_NOT_RUN, "memory")
    assert bench.validate().verdict is PASSED


def test_a_missing_library_or_another_device_under_the_uuid_is_no_failure_of_the_device(bench):
    bench.cuda.set(GPU.uuid, "0000:99:00.0")
    found = bench.validator().validate(GPU, None, COMPUTE)
    assert (found.verdict, found.reason) == (COULD_NOT_RUN, "other-device")
    assert bench.cuda.calls() == [], "a context was made on another device"
    (bench.cuda.folder / "libcuda.so.1").unlink()
    found = bench.validator().validate(GPU, None, COMPUTE)
    assert (found.verdict, found.reason) == (COULD_NOT_RUN, "no-library")


@pytest.mark.parametrize(("mode", "verdict"), [("passes", PASSED), ("decays", FAILED), ("slow", FAILED)])
def test_level_two_sweeps_the_memory_and_measures_copies(bench, mode, verdict):
    found = bench.validate(mode, THOROUGH)
    assert found.verdict is verdict, found
    if verdict is PASSED:
        assert set(found.figures) >= {"sweptMiB", "copyInMiBs", "copyOutMiBs"}


def test_a_partition_is_tested_by_its_own_uuid(bench):
    assert bench.validate(part=PARTITION).verdict is PASSED
    assert bench.cuda.calls() == [PARTITION.uuid]


def test_a_device_that_is_held_is_never_touched(bench):
    for name in ("holder", "claims"):
        setattr(bench.holders, name, "claim default/one")
        found = bench.validate()
        assert (found.verdict, found.reason, found.detail) == (COULD_NOT_RUN, "held", "claim default/one")
        setattr(bench.holders, name, "")
    assert bench.cuda.calls("cuInit") == []


def test_a_device_with_a_known_fault_has_failed_without_a_test(bench):
    bench.holders.fault = "needs-reset (gpu-reset): the driver asks for a reset of the GPU once no pod uses it"
    found = bench.validate()
    assert (found.verdict, found.level, found.reason) == (FAILED, ValidationLevel.READING, "needs-reset")
    assert bench.cuda.calls("cuInit") == []


def test_of_two_tests_one_waits_for_the_other(bench):
    bench.cuda.set(GPU.uuid, ONE, "hangs")
    holding, found = bench.validator(), []
    first = threading.Thread(target=holding.validate, args=(GPU, None, COMPUTE))
    first.start()
    until(bench.cuda.contexts)
    other = replace(GPU, uuid="GPU-2", pci_address="0000:43:00.0")
    bench.cuda.set(other.uuid, other.pci_address)
    second = threading.Thread(target=lambda: found.append(bench.validator().validate(other, None, COMPUTE)))
    second.start()
    second.join(0.3)
    assert not found
    holding.stop()
    first.join(60)
    second.join(60)
    assert [one.verdict for one in found] == [PASSED]
    assert not bench.cuda.contexts()


@pytest.mark.parametrize(
    ("words", "verdict"),
    [("exit 0", PASSED), ("echo $CUDA_VISIBLE_DEVICES is bad; exit 1", FAILED), ("exit 3", COULD_NOT_RUN)],
)
def test_an_administrators_command_decides_by_its_exit_status(bench, words, verdict):
    found = bench.validator(command=("/bin/sh", "-c", words)).validate(GPU, None, COMMAND)
    assert found.verdict is verdict, found
    if verdict is FAILED:
        assert found.detail == f"{GPU.uuid} is bad"


def test_a_command_gets_the_device_in_its_arguments_and_no_shell(bench):
    command = command_of(f"/usr/bin/test '{{uuid}} {{pci}}' = '{GPU.uuid} {ONE}'")
    assert bench.validator(command=command).validate(GPU, None, COMMAND).verdict is PASSED
    missing = bench.validator(command=("/no/such/program",)).validate(GPU, None, COMMAND)
    assert missing.verdict is COULD_NOT_RUN
    for text in ("nvidia-smi", "", "'"):
        with pytest.raises(UsageError):
            command_of(text)


def test_processes_that_a_command_has_started_end_with_it(bench, tmp_path):
    file = tmp_path / "pid"
    bench.validator(command=("/bin/sh", "-c", f"sleep 600 & echo $! > {file}; exit 0")).validate(GPU, None, COMMAND)
    until(lambda: not _is_alive(int(file.read_text())))


def test_the_process_ends_with_the_thread_that_started_it(bench):
    bench.cuda.set(GPU.uuid, ONE, "hangs")
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        bench.validator().validate(GPU, None, COMPUTE)
        os._exit(0)
    until(bench.cuda.contexts)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    until(lambda: not bench.cuda.contexts())


def test_a_stopped_validator_ends_its_test_and_begins_no_other(bench):
    bench.cuda.set(GPU.uuid, ONE, "hangs")
    validator, found = bench.validator(), []
    thread = threading.Thread(target=lambda: found.append(validator.validate(GPU, None, COMPUTE)))
    thread.start()
    until(bench.cuda.contexts)
    unhindered(validator.stop)
    thread.join(60)
    assert [found[0].verdict, found[0].reason] == [COULD_NOT_RUN, "interrupted"]
    assert validator.validate(GPU, None, COMPUTE).reason == "interrupted"


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
