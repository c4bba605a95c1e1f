"""A claim that arrives while its device is tested: the test ends at once, and no process of it is left."""

import os
import random
import subprocess
import threading
import time
from pathlib import Path

import pytest

from dra_driver.base.errors import PrepareError
from dra_driver.base.names import gpu_name
from dra_driver.base.wire import DeviceType
from dra_driver.node.devices.describing import Device
from dra_driver.node.devices.offering import Inventory, Offering
from dra_driver.node.health import validator
from dra_driver.node.health.validation import ValidationLevel
from dra_driver.node.health.validation_child import TestChild
from dra_driver.node.health.validator import Validator, holding_claims
from dra_driver.node.ledger.locks import ValidationLock
from tests.support.plugin.parts import Rig, gpu
from tests.support.waiting import until

GPU = gpu(0)
NAME = gpu_name(GPU.pci_address)
ROUNDS = int(os.environ.get("VALIDATION_RACE_ROUNDS", "100"))
SPREAD_SECONDS = 0.004
COMMAND = ValidationLevel.COMMAND


class LedgerAlone:
    """Holders that are read from the ledger alone, as in the last check before a test."""

    def __init__(self, rig):
        self.rig = rig

    def holder_of(self, gpu, partition):
        return ""

    def claims_of(self, device):
        return holding_claims(self.rig.ledger, device)

    def fault_of(self, gpu, partition):
        return ""


@pytest.fixture
def started(monkeypatch):
    """Make each test a process that sleeps, and collect the process ids."""
    pids = []

    def sleeping(self):
        command = ["/bin/sleep", "600"]
        process = subprocess.Popen(command, pass_fds=self._order.inherited, process_group=0, stdout=subprocess.PIPE)
        pids.append(process.pid)
        return process

    monkeypatch.setattr(TestChild, "_started", sleeping)
    monkeypatch.setattr(validator, "make_cgroup", lambda limit: None)
    return pids


@pytest.fixture
def tested(rig: Rig):
    rig.inventory = Inventory(Offering((Device(NAME, DeviceType.GPU, {}, {}, GPU),)))
    return Validator(rig.hardware, ValidationLock(rig.data), LedgerAlone(rig), command=("/bin/true",))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_whenever_a_claim_comes_no_test_of_its_device_is_left_when_prepare_returns(rig: Rig, tested, started):
    rig.allocate("u1", NAME)
    reasons, left = [], []
    rng = random.Random(7)

    def test(pause: float) -> None:
        time.sleep(pause)
        reasons.append(tested.validate(GPU, None, COMMAND).reason)

    for _ in range(ROUNDS):
        thread = threading.Thread(target=test, args=(rng.random() * SPREAD_SECONDS,))
        thread.start()
        time.sleep(rng.random() * SPREAD_SECONDS)
        rig.prepare("u1")
        left += [pid for pid in started if is_alive(pid)]
        thread.join()
        rig.unprepare("u1")
        del started[:-1]
    assert left == []
    assert set(reasons) == {"held", "interrupted"}, "both orders happened"


def test_a_claim_of_another_device_leaves_the_test_alone(rig: Rig, tested, started):
    other = gpu(1)
    devices = tuple(Device(gpu_name(one.pci_address), DeviceType.GPU, {}, {}, one) for one in (GPU, other))
    rig.inventory = Inventory(Offering(devices))
    thread = threading.Thread(target=tested.validate, args=(GPU, None, COMMAND))
    thread.start()
    until(lambda: started)
    rig.prepare(rig.allocate("u2", gpu_name(other.pci_address)))
    assert is_alive(started[0])
    tested.stop()
    thread.join()


def test_if_a_test_cannot_be_ended_the_claim_is_refused_and_nothing_of_it_is_left(rig: Rig, monkeypatch):
    turn = ValidationLock(rig.data)
    monkeypatch.setattr(ValidationLock.interrupt, "__defaults__", (0.2,))
    with turn.take("gpu-0", 1.0) as held:
        held.started(2**22 + 1)  # a stand-in for a process that the kernel keeps
        with pytest.raises(PrepareError) as refused:
            rig.prepare(rig.allocate("u1", "gpu-0"))
    assert refused.value.code == "prepare.validation-hangs"
    assert rig.states() == {}
    assert rig.prepare("u1")


def test_another_process_whose_id_the_test_had_is_not_ended(rig: Rig):
    bystander = subprocess.Popen(["/bin/sleep", "600"], process_group=0)
    try:
        turn = ValidationLock(rig.data)
        with turn.take("gpu-0", 1.0) as held:
            held.started(bystander.pid)
            wire = (rig.data / "validation.lock").read_bytes().replace(b'"began": "', b'"began": "1')
            (rig.data / "validation.lock").write_bytes(wire)
            with pytest.raises(PrepareError):
                turn.interrupt(["gpu-0"], 0.1)
        os.kill(bystander.pid, 0)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
