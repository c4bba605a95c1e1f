"""A GPU that comes back from a virtual machine: compared, tested again, and with its persistence mode as before."""

import errno
import os
import time
from dataclasses import replace
from functools import partial

import pytest

from dra_driver.base.errors import HardwareError
from dra_driver.base.machine import Deadline
from dra_driver.hardware.port import Roots
from dra_driver.hardware.vfio import PciIdentity
from dra_driver.node.daemon.passthrough import ReturnedGpus
from dra_driver.node.daemon.passthrough_memory import RememberedGpus, ReturningGpu
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.ledger.recorded_steps import GpuReference
from tests.node.passthrough.support.bus import BEFORE, DURING, PASSED, PassthroughRig
from tests.support.facts import FULL_GPU, facts
from tests.support.kept_files import locked, without_descriptors

ADDRESS = FULL_GPU.pci_address


class Recorder:
    """The listener, the tests of devices and the hardware, as far as they are called here."""

    needs_privilege = False

    def __init__(self):
        self.changes, self.retested, self.persistence_set = 0, [], []

    def validation_changed(self):
        self.changes += 1

    def retest(self, uuid):
        self.retested.append(uuid)

    def await_return(self):
        pass

    def is_closed(self):
        return True

    def open_by(self, gpu):
        return ()

    def persistence(self, gpu, deadline_s):
        return True

    def set_persistence(self, gpu, enabled, deadline_s):
        self.persistence_set.append(enabled)

    def reset(self, gpus, deadline_s):
        raise AssertionError


@pytest.fixture
def returning_gpu(tmp_path):
    recorder = Recorder()
    kept = RememberedGpus(tmp_path, "boot-1")
    kept.learn([FULL_GPU])
    return recorder, ReturnedGpus(kept, recorder, Roots(), recorder, recorder), tmp_path


def begin(returned, *, needs_persistence=False):
    returned.begin(GpuReference.of(FULL_GPU), PciIdentity(), needs_persistence=needs_persistence)


def test_a_gpu_is_withheld_until_its_driver_reports_it_as_it_was_and_is_tested_again(returning_gpu):
    recorder, returned, _ = returning_gpu
    begin(returned, needs_persistence=True)
    inventory = build_inventory(facts(FULL_GPU))
    assert returned.withheld(inventory) == {"gpu-0000-65-00-0"}
    assert recorder.changes == 1
    assert returned.checked(facts()).problems == ()
    assert returned.waits_for_claims
    with pytest.raises(HardwareError, match="has not reported it yet"):
        returned.await_checked(ADDRESS, Deadline.after(0))
    assert returned.checked(facts(FULL_GPU)).problems == ()
    assert not returned.waits_for_claims
    assert returned.withheld(inventory) == frozenset()
    assert recorder.retested == [FULL_GPU.uuid]
    assert recorder.persistence_set == [True]
    returned.await_checked(ADDRESS, Deadline.after(0))


@pytest.mark.parametrize("changed", [{"uuid": "GPU-other"}, {"vbios_version": "96.00.A5.00.99"}])
def test_a_gpu_with_another_identity_or_firmware_stays_withheld_even_after_a_restart(returning_gpu, changed):
    recorder, returned, folder = returning_gpu
    begin(returned)
    (problem,) = returned.checked(facts(replace(FULL_GPU, **changed))).problems
    assert (problem.code, problem.subject) == ("hardware.identity-changed", ADDRESS)
    again = ReturnedGpus(RememberedGpus(folder, "boot-1"), recorder, Roots(), recorder, recorder)
    assert again.withheld(build_inventory(facts(FULL_GPU)))
    with pytest.raises(HardwareError):
        returned.await_checked(ADDRESS, Deadline.after(5))
    assert not ReturnedGpus(RememberedGpus(folder, "boot-2"), recorder, Roots(), recorder, recorder).waits_for_claims


def test_a_file_that_is_damaged_or_of_another_boot_holds_nothing_back(tmp_path):
    (tmp_path / "passthrough.json").write_text('{"boot": "boot-1", "returning": [1], "gpus": {"x": 2}}')
    assert not RememberedGpus(tmp_path, "boot-1").returning
    for text in ("{", "[" * 9999):
        (tmp_path / "passthrough.json").write_text(text)
        assert not RememberedGpus(tmp_path, "boot-1").returning
    RememberedGpus(tmp_path, "boot-1").begin_return(ADDRESS, ReturningGpu())
    assert RememberedGpus(tmp_path, "boot-1").returning
    assert not RememberedGpus(tmp_path, "boot-2").returning


def test_what_two_agents_record_is_merged_and_seen_by_both(tmp_path):
    old, new = RememberedGpus(tmp_path, "boot-1"), RememberedGpus(tmp_path, "boot-1")
    new.begin_return(ADDRESS, ReturningGpu("GPU-1"))
    old.learn([FULL_GPU])
    assert old.returning == new.returning == {ADDRESS: ReturningGpu("GPU-1")}
    assert RememberedGpus(tmp_path, "boot-1").returning
    old.end_return(ADDRESS)
    assert not new.returning
    assert RememberedGpus(tmp_path, "boot-1").facts_of(ADDRESS) == new.facts_of(ADDRESS) == FULL_GPU


def test_only_the_agent_with_the_role_checks_a_gpu_that_another_one_took_back(returning_gpu):
    recorder, returned, folder = returning_gpu
    other = ReturnedGpus(RememberedGpus(folder, "boot-1"), recorder, Roots(), recorder, recorder)
    other.stop()
    begin(other)
    other.checked(facts(FULL_GPU))
    assert other.waits_for_claims
    assert returned.withheld(build_inventory(facts(FULL_GPU))) == {"gpu-0000-65-00-0"}
    returned.checked(facts(FULL_GPU))
    assert recorder.retested == [FULL_GPU.uuid]
    other.await_checked(ADDRESS, Deadline.after(5))


def test_what_can_not_be_read_is_neither_forgotten_nor_overwritten_and_read_later(returning_gpu):
    recorder, returned, folder = returning_gpu
    begin(returned)
    before = (folder / "passthrough.json").read_bytes()
    (folder / "passthrough.json").rename(folder / "kept")
    (folder / "passthrough.json").mkdir()  # a file that can't be read, also by root
    kept = RememberedGpus(folder, "boot-1")
    again = ReturnedGpus(kept, recorder, Roots(), recorder, recorder)
    inventory = build_inventory(facts(FULL_GPU))
    assert again.withheld(inventory) is None
    with pytest.raises(HardwareError):
        again.await_checked(ADDRESS, Deadline.after(0))
    kept.learn([replace(FULL_GPU, vbios_version="1")])
    assert again.withheld(inventory) is None
    (folder / "passthrough.json").rmdir()
    (folder / "kept").rename(folder / "passthrough.json")
    assert (folder / "passthrough.json").read_bytes() == before
    assert again.withheld(inventory) == {"gpu-0000-65-00-0"}
    assert RememberedGpus(folder, "boot-1").facts_of(ADDRESS).vbios_version == "1", "what was learned meanwhile is lost"


def test_an_agent_without_descriptors_keeps_what_it_has_to_record(returning_gpu):
    _, returned, folder = returning_gpu
    with without_descriptors():
        begin(returned)
        assert returned.waits_for_claims
    assert not RememberedGpus(folder, "boot-1").returning
    assert returned.waits_for_claims
    assert RememberedGpus(folder, "boot-1").returning


@pytest.mark.parametrize("damage", ["{", "", "[]"])
def test_after_damage_every_gpu_is_checked_and_tested_before_it_is_offered(returning_gpu, damage):
    recorder, returned, folder = returning_gpu
    begin(returned)
    (folder / "passthrough.json").write_text(damage)
    inventory = build_inventory(facts(FULL_GPU))
    for _ in range(2):  # the first one ends before it has checked anything
        again = ReturnedGpus(RememberedGpus(folder, "boot-1"), recorder, Roots(), recorder, recorder)
        assert again.withheld(inventory) is None
        with pytest.raises(HardwareError):
            again.await_checked(ADDRESS, Deadline.after(0))
    again.checked(facts(FULL_GPU))
    assert (folder / "passthrough.json.damaged").read_text() == damage
    assert recorder.retested == [FULL_GPU.uuid]
    assert again.withheld(inventory) == frozenset()
    assert not RememberedGpus(folder, "boot-1").is_lost


def test_a_damaged_state_forgets_no_gpu_that_comes_back_as_long_as_the_older_file_has_it(returning_gpu):
    _, returned, folder = returning_gpu
    begin(returned)
    (folder / "state.db").write_bytes(b"garbage" * 999)
    kept = RememberedGpus(folder, "boot-1")
    assert kept.is_lost
    kept.learn([replace(FULL_GPU, vbios_version="1")])
    assert kept.returning
    assert (folder / "state.db.damaged").exists()


def test_a_state_that_another_process_has_locked_delays_a_call_by_at_most_fifty_milliseconds(returning_gpu):
    _, returned, folder = returning_gpu
    begin(returned)
    kept = RememberedGpus(folder, "boot-1")
    with locked(folder / "state.db"):
        begun = time.monotonic()
        assert kept.returning
        assert time.monotonic() - begun < 0.05 + 0.05, "50 ms, and as much for a busy machine"
        begun = time.monotonic()
        kept.end_return(ADDRESS)
        assert time.monotonic() - begun < 0.05 + 0.05
    assert not kept.returning
    assert not RememberedGpus(folder, "boot-1").returning


class PersistentRig(PassthroughRig):
    """A node whose GPU is in persistence mode, as its library reports."""

    def restart(self):
        calls = Recorder()
        for name in ("await_return", "is_closed", "open_by", "persistence", "set_persistence", "reset"):
            setattr(self.hardware, name, getattr(calls, name))
        self.hardware.needs_privilege = False
        self.calls = calls
        return super().restart()


def test_persistence_mode_is_off_before_the_gpu_leaves_its_driver_and_the_ledger_records_that_it_was_on(tmp_path):
    rig = PersistentRig(tmp_path)
    seen = []
    rig.kernel.before = lambda *_: seen.append(list(rig.calls.persistence_set))
    rig.allocate("u1", PASSED)
    rig.prepare("u1")
    assert rig.drivers() == DURING
    assert seen[0] == [False]
    (record,) = rig.ledger.records()
    assert record.steps[0].persistence
    rig.unprepare("u1")
    assert rig.drivers() == BEFORE
    rig.close()


def in_use(rig):
    rig.open_node(77, "nvidia0", "dcgm")


def not_unbound(rig):
    rig.kernel.before = partial(refuse, "unbind")


def not_bound(rig):
    rig.kernel.before = partial(refuse, "bind")


def refuse(refused, file, _text):
    if file == refused:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))


@pytest.mark.parametrize("fail", [in_use, not_unbound, not_bound])
def test_a_gpu_that_no_virtual_machine_got_is_in_persistence_mode_again(tmp_path, fail):
    rig = PersistentRig(tmp_path)
    fail(rig)
    rig.allocate("u1", PASSED)
    with pytest.raises(HardwareError):
        rig.prepare("u1")
    assert rig.calls.persistence_set[:1] == [False]
    rig.kernel.before = lambda *_: None
    rig.unprepare("u1")
    assert rig.drivers() == BEFORE
    assert rig.calls.persistence_set[-1]
    rig.close()


class Kill(BaseException):
    """The end of the agent's process, which no handler of errors sees."""


def killed(_file, _text):
    raise Kill


def test_the_next_agent_switches_persistence_mode_on_again_for_a_gpu_that_was_not_handed_over(tmp_path):
    rig = PersistentRig(tmp_path)
    rig.kernel.before = killed
    rig.allocate("u1", PASSED)
    with pytest.raises(Kill):
        rig.prepare("u1")
    rig.kernel.before = lambda *_: None
    rig.restart()
    rig.unprepare("u1")
    assert rig.drivers() == BEFORE
    assert rig.calls.persistence_set == [True]
    rig.close()
