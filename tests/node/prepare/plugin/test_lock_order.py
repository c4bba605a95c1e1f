"""The recording of locks, by which every test of the plugin notices that locks are taken out of order."""

import pytest

from dra_driver.base.machine import Deadline
from dra_driver.node.ledger.locks import NodeLocks, claim_lock, device_lock, gpu_lock
from tests.support.plugin.lock_order import LockOrder
from tests.support.plugin.parts import in_thread

CLAIM, DEVICE, GPU = claim_lock("u1"), device_lock("gpu-0000-01-00-0"), gpu_lock("0000:01:00.0")


def held_one_after_the_other(path, *names: str) -> None:
    """Hold two locks of an agent, the second while holding the first."""
    locks = NodeLocks(path)
    with locks.hold(names[:1], Deadline.after(5)), locks.hold(names[1:], Deadline.after(5)):
        pass
    locks.close()


@pytest.mark.parametrize("names", [(CLAIM, DEVICE), (CLAIM, GPU), (DEVICE, GPU), (GPU, "sharing/gpu-0000-01-00-0")])
def test_claims_then_devices_then_gpus_then_effects_is_the_order(tmp_path, lock_order: LockOrder, names):
    held_one_after_the_other(tmp_path / "locks", *names)
    assert lock_order.inversions == []


@pytest.mark.parametrize(
    "names", [(DEVICE, CLAIM), (GPU, CLAIM), (GPU, DEVICE), (DEVICE, DEVICE + "-mig-1"), (GPU, GPU + "1")]
)
def test_an_inversion_is_noticed_in_the_thread_and_agent_in_which_it_happens(tmp_path, lock_order: LockOrder, names):
    thread, _ = in_thread(held_one_after_the_other, tmp_path / "locks", *names)
    thread.join(60)
    assert lock_order.inversions == [f"{names[1]} taken while holding {names[0]}"]
    lock_order.inversions.clear()
