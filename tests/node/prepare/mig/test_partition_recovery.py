"""Partitions after a reboot, a lost ledger and a lost claim: made again, recognized, or destroyed."""

import re

import pytest

from dra_driver.base.errors import HardwareError
from dra_driver.hardware.facts import Facts
from dra_driver.node.neighbours.gone_claims import GONE_SECONDS
from tests.support.plugin.mig_parts import small


def test_after_a_reboot_the_partition_is_made_again_under_the_same_ids(rig):
    before = rig.now_prepare("u1", small(3))
    rig.reboot()
    assert rig.partitions_made() == []
    assert rig.now_prepare("u1", small(3)) == before
    assert rig.partitions_made() == [(0, "1g.10gb", 3)]
    rig.unprepare("u1")
    rig.assert_untouched()


def test_after_a_reboot_a_partition_that_an_administrator_made_in_its_place_is_left(rig):
    rig.now_prepare("u1", small(3))
    rig.reboot()
    rig.by_hand("1g.10gb", 3)  # same instance ids, same UUID
    assert rig.names() == [small(3)], "offered as it stands"
    rig.unprepare("u1")
    assert rig.partitions_made() == [(0, "1g.10gb", 3)]
    assert rig.states() == {}


def test_after_a_lost_ledger_our_partition_is_recognized_by_the_cdi_file(rig):
    rig.now_prepare("u1", small(3))
    rig.by_hand("1g.10gb", 6)
    rig.ledger.close()
    for path in rig.data.glob("ledger.db*"):
        path.unlink()
    from dra_driver.node.ledger.ledger import Ledger
    from dra_driver.node.prepare.repair import CdiClaimFiles

    Ledger(rig.data / "ledger.db", files=CdiClaimFiles(rig.store, "gpu.nvidia.com")).close()
    rig.restart()
    rig.unprepare("u1")
    assert rig.partitions_made() == [(0, "1g.10gb", 6)]


def test_the_partition_of_an_orphan_file_is_destroyed_with_it_and_no_other(rig):
    rig.now_prepare("u1", small(3))
    rig.now_prepare("u2", small(5))
    rig.by_hand("1g.10gb", 6)
    rig.ledger.forget(rig.ledger.get("u1"))  # a ledger that an older copy replaced
    rig.scan()
    assert not rig.repair.remove_orphan("u1"), "its claim exists, so a pod may be using it"
    rig.api.delete("u1")
    assert not rig.repair.remove_orphan("u1"), "a kubelet that has just started reports no pods yet"
    rig.clock.seconds += GONE_SECONDS
    assert rig.repair.remove_orphan("u1")
    assert rig.partitions_made() == [(0, "1g.10gb", 5), (0, "1g.10gb", 6)]
    assert list(rig.files()) == [rig.file_of("u2")]
    assert not rig.repair.remove_orphan("u2")


def test_the_partition_of_an_orphan_file_stays_as_long_as_another_claim_has_it(rig):
    rig.now_prepare("u1", small(3))
    rig.ledger.forget(rig.ledger.get("u1"))
    rig.api.delete("u1")
    rig.scan()
    rig.now_prepare("u2", small(3))
    assert not rig.repair.remove_orphan("u1")
    rig.clock.seconds += GONE_SECONDS
    assert not rig.repair.remove_orphan("u1")
    assert rig.partitions_made() == [(0, "1g.10gb", 3)]
    rig.unprepare("u2")
    assert not rig.repair.remove_orphan("u1"), "whether its claim exists is found out again"
    rig.clock.seconds += GONE_SECONDS
    assert rig.repair.remove_orphan("u1")
    assert (rig.partitions_made(), rig.files()) == ([], {})


def test_an_orphan_file_of_another_boot_or_of_a_partition_that_is_gone_destroys_nothing(rig):
    rig.now_prepare("u1", small(3))
    path = rig.cdi / rig.file_of("u1")
    record = rig.cdi / f".{rig.file_of('u1')}.record"
    text, recorded = path.read_bytes(), record.read_bytes()
    rig.unprepare("u1")
    rig.api.delete("u1")
    rig.by_hand("1g.10gb", 3)
    uuid = rig.partitions()[0].uuid.encode()
    for boot in (b"another-boot", b"boot-1"):
        other = uuid if boot != b"boot-1" else b"MIG-of-nobody"
        path.write_bytes(text)
        record.write_bytes(re.sub(rb"MIG-[^/\"]+/boot-1", other + b"/" + boot, recorded))
        rig.repair.remove_orphan("u1")
        rig.clock.seconds += GONE_SECONDS
        assert rig.repair.remove_orphan("u1")
        assert rig.partitions_made() == [(0, "1g.10gb", 3)]


def test_an_orphan_file_stays_while_the_hardware_cannot_be_read(rig, monkeypatch):
    rig.now_prepare("u1", small(3))
    rig.ledger.forget(rig.ledger.get("u1"))
    rig.api.delete("u1")
    discover = rig.hardware.discover
    monkeypatch.setattr(rig.hardware, "discover", lambda: Facts("simulated", waiting_for="the driver"))
    rig.repair.remove_orphan("u1")
    rig.clock.seconds += GONE_SECONDS
    with pytest.raises(HardwareError, match="the driver"):
        rig.repair.remove_orphan("u1")
    assert rig.file_of("u1") in rig.files()
    monkeypatch.setattr(rig.hardware, "discover", discover)
    rig.repair.remove_orphan("u1")
    rig.clock.seconds += GONE_SECONDS
    assert rig.repair.remove_orphan("u1")
    assert rig.partitions_made() == []


def test_a_recovered_claim_that_is_prepared_again_keeps_its_partition_until_unprepare(rig):
    rig.now_prepare("u1", small(3))
    before = rig.partitions()
    rig.ledger.close()
    for path in rig.data.glob("ledger.db*"):
        path.unlink()
    rig.restart()
    assert rig.now_prepare("u1", small(3))
    assert rig.partitions() == before
    rig.unprepare("u1")
    assert rig.partitions_made() == []
