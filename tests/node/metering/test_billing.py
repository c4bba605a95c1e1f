"""Billing on a real ledger: hours that add up, survive restarts, and count nothing twice."""

import itertools
from dataclasses import replace

import pytest

from dra_driver.hardware.facts import Facts
from dra_driver.node.claims.allocated import AllocatedClaim, AllocatedDevice
from dra_driver.node.claims.config_schema import read_sharing_config
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.ledger_file import delete
from dra_driver.node.ledger.record import ClaimRecord, ClaimState, record_of_claim
from dra_driver.node.metering.billing import Billing
from dra_driver.node.metering.claim_tally import ClaimTallies
from dra_driver.node.metering.holders import HolderReading
from tests.support.metering.snapshots import gpus, holder, samples

GPUS = gpus()
NAMES = [f"gpu-{gpu.pci_address.replace(':', '-').replace('.', '-')}" for gpu in GPUS]
HOUR = 3600.0


class Node:
    """A ledger, the clocks by which it records, and the billing of an agent that may be started again."""

    def __init__(self, folder, monkeypatch, inventory):
        self.path, self.inventory, self.boot = folder / "ledger.db", inventory, "boot"
        self.now, self.up = 1_000_000.0, 5_000.0  # the wall clock, the time since boot
        monkeypatch.setattr("dra_driver.node.ledger.spans.time.time", lambda: self.now)
        monkeypatch.setattr("dra_driver.node.ledger.spans.boot_seconds", lambda: self.up)
        self.numbers = itertools.count()
        self.start()

    def start(self):
        self.ledger = Ledger(self.path, boot_id=self.boot)
        self.ledger.keeps_spans = True
        self.billing = Billing(self.ledger.spans, "gpu.nvidia.com", "node-1/gpu.nvidia.com")
        self.billing.begin()
        self.tallies = ClaimTallies(self.ledger.claim_totals, "node-1/gpu.nvidia.com")
        self.turn()

    def kill(self):
        self.ledger.close()

    def wait(self, seconds):
        self.now += seconds
        self.up += seconds

    def turn(self, *readings, seconds=0.0):
        self.wait(seconds)
        now, spans = self.billing.update(self.inventory, readings)
        self.tallies.update(spans, readings, now, self.billing)

    def prepare(self, device=NAMES[0], namespace="team", state=ClaimState.PREPARED, **more):
        uid = f"uid-{next(self.numbers)}"
        found = AllocatedDevice("gpu", "node-1/gpu.nvidia.com", device, device_class="gpu.nvidia.com", **more)
        claim = AllocatedClaim(uid, namespace, uid, (found,))
        record = ClaimRecord(uid, namespace, uid, state, "boot", record_of_claim(claim), ())
        assert not self.ledger.intend(record, claim)
        return record

    def unprepare(self, record):
        self.ledger.forget(record)

    def shown(self, name):
        lines = [*self.billing.lines(), *self.tallies.lines()]
        return {tuple(one.labels.values()): one.value for one in samples(lines) if one.name == name}

    def total(self, name):
        return sum(self.shown(name).values())


@pytest.fixture
def node(tmp_path, monkeypatch):
    made = Node(tmp_path, monkeypatch, build_inventory(Facts("simulated", GPUS)))
    yield made
    made.ledger.close()


def test_a_thousand_claims_of_five_seconds_add_up_however_often_they_are_counted(node):
    for number in range(1000):
        record = node.prepare(NAMES[number % 8])
        node.wait(5)
        node.unprepare(record)
        if number % 7 == 0:
            node.turn()
    node.turn()
    assert node.total("dra_allocated_seconds_total") == pytest.approx(5000.0, rel=1e-9)
    assert node.total("dra_unclaimed_seconds_total") == pytest.approx(7 * 5000.0, rel=1e-9)
    assert node.shown("dra_allocated_seconds_total") == {
        ("team", "gpu.nvidia.com", GPUS[0].product_name, "gpu", "gpu.nvidia.com"): pytest.approx(5000.0)
    }
    assert node.ledger.spans.every() == ()


def test_totals_survive_the_agent_and_count_a_claim_that_lasts_while_it_is_down(node):
    lasting, ended = node.prepare(NAMES[0]), node.prepare(NAMES[1])
    node.turn(seconds=100)
    node.unprepare(ended)
    node.kill()
    node.wait(50)
    node.start()
    assert node.total("dra_allocated_seconds_total") == 250
    node.unprepare(lasting)
    node.turn(seconds=10)
    assert node.total("dra_allocated_seconds_total") == 250
    node.kill()
    node.start()
    assert node.total("dra_allocated_seconds_total") == 250


def test_no_total_falls_when_an_agent_is_killed(node):
    """Prometheus takes a counter that fell for one that was reset, and would add its whole value once more."""
    record = node.prepare(NAMES[0])
    busy = HolderReading(replace(holder(record.name), uid=record.uid), 10.0, 0.25, None, None, None)
    names = [f"dra_{kind}_seconds_total" for kind in ("allocated", "busy", "measured", "unclaimed")]
    before = dict.fromkeys(names, 0.0)
    for _ in range(30):
        for _ in range(4):
            node.turn(busy, seconds=10)
        shown = {name: node.total(name) for name in names}
        assert all(shown[name] >= before[name] for name in names), (before, shown)
        before = shown
        node.kill()
        node.start()
        shown = {name: node.total(name) for name in names}
        assert all(shown[name] >= before[name] for name in names), (before, shown)
        before = shown
    assert all(before.values())


def test_a_clock_that_is_set_back_by_a_day_does_not_keep_hours_from_being_saved(node):
    node.turn(seconds=100)
    node.now -= 86400
    node.turn(seconds=10)
    for _ in range(20):
        node.turn(seconds=10)
    before = node.total("dra_unclaimed_seconds_total")
    node.kill()
    node.start()
    assert node.total("dra_unclaimed_seconds_total") >= before >= 8 * 150


def test_an_idle_fleet_counts_every_gpu_as_unclaimed(node):
    for _ in range(36):
        node.turn(seconds=100)
    assert node.total("dra_unclaimed_seconds_total") == 8 * HOUR
    assert node.shown("dra_allocated_seconds_total") == {}


def test_busy_time_is_counted_where_it_is_measured_and_is_missing_where_it_is_not(node):
    record = node.prepare(NAMES[0])
    node.turn(seconds=10)
    assert node.shown("dra_busy_seconds_total") == {}
    busy = HolderReading(replace(holder(record.name), uid=record.uid), 10.0, 0.25, 0.4, 7e9, 5000.0)
    node.turn(busy, seconds=10)
    assert (node.total("dra_busy_seconds_total"), node.total("dra_measured_seconds_total")) == (2.5, 10)
    assert node.total("dra_claim_busy_seconds_total") == 2.5
    assert node.total("dra_claim_memory_used_max_bytes") == 7e9
    assert node.total("dra_claim_energy_joules_total") == 5
    buckets = {labels[-1]: value for labels, value in node.shown("dra_claim_sm_active_bucket").items()}
    assert (buckets["0.25"], buckets["0.5"], buckets["+Inf"]) == (0, 1, 1)
    node.kill()
    node.start()
    assert node.total("dra_busy_seconds_total") == 2.5


def test_a_claim_is_shown_for_five_minutes_after_its_end_and_then_no_more(node):
    record = node.prepare()
    node.turn(seconds=20)
    node.unprepare(record)
    node.turn(seconds=290)
    assert node.total("dra_claim_allocated_seconds_total") == 20
    node.turn(seconds=20)
    assert node.shown("dra_claim_allocated_seconds_total") == {}
    assert node.total("dra_allocated_seconds_total") == 20


def test_a_claim_whose_preparation_failed_costs_nothing(node):
    record = node.prepare(state=ClaimState.PREPARING)
    node.wait(30)
    node.unprepare(record)
    node.turn()
    assert node.shown("dra_allocated_seconds_total") == {}
    assert node.ledger.spans.every() == ()


def test_claims_that_were_prepared_without_spans_count_from_the_next_start_of_the_agent(node):
    node.ledger.keeps_spans = False
    node.prepare()
    assert node.ledger.spans.every() == ()
    node.kill()
    node.wait(1000)
    node.start()
    node.turn(seconds=60)
    assert node.total("dra_allocated_seconds_total") == 60


def test_a_claim_of_a_lost_ledger_counts_from_when_its_name_is_known(node):
    node.ledger.keeps_spans = False
    record = node.prepare(namespace="", state=ClaimState.RECOVERED)
    node.turn(seconds=60)
    assert node.ledger.spans.every() == ()
    claim = AllocatedClaim(record.uid, "team", record.uid, ())
    node.ledger.complete(replace(record, namespace="team", state=ClaimState.PREPARED), claim)
    node.turn(seconds=60)
    assert [span.namespace for span in node.ledger.spans.every()] == ["team"]


def test_a_claim_that_an_older_agent_unprepared_is_counted_only_until_that_is_noticed(node):
    record = node.prepare()
    node.turn(seconds=30)
    node.ledger._write(lambda connection: delete(connection, record.uid))
    for _ in range(10):
        node.turn(seconds=60)
    assert node.total("dra_allocated_seconds_total") == 90
    assert node.ledger.spans.every() == ()


def test_a_clock_that_is_set_back_lowers_no_total(node):
    record = node.prepare()
    node.turn(seconds=100)
    node.now -= 50
    node.turn()
    assert node.total("dra_allocated_seconds_total") == 100
    node.now -= 500
    node.unprepare(record)
    node.turn()
    assert node.total("dra_allocated_seconds_total") == 100


FOUR = "version: rules/v1\nrules: [{match: {types: [gpu]}, replicas: 4, sharing: {strategy: TimeSlicing}}]\n"


@pytest.mark.parametrize("with_shares", [True, False])
def test_the_shares_of_a_gpu_add_up_to_the_gpu(tmp_path, monkeypatch, with_shares):
    (tmp_path / "rules.yaml").write_text(FOUR)
    rules = replace(read_sharing_config(tmp_path / "rules.yaml"), node="node-1")
    built = build_inventory(Facts("simulated", GPUS), sharing=rules)
    node = Node(tmp_path, monkeypatch, built)
    for index in range(4):
        if with_shares:
            node.prepare(NAMES[0], share_id=f"share-{index}", consumed=(("shares", "1"),))
        else:
            node.prepare(f"{NAMES[0]}-share-{index}")
    node.turn(seconds=100)
    assert node.total("dra_allocated_seconds_total") == pytest.approx(100)
    assert node.total("dra_unclaimed_seconds_total") == pytest.approx(700)
    assert {labels[3] for labels in node.shown("dra_allocated_seconds_total")} == {"gpu-share"}
    assert set(node.shown("dra_gpu_part").values()) == {1}
    assert sorted(node.shown("dra_claim_allocated_seconds_total").values()) == pytest.approx([25] * 4)
    node.ledger.close()


def test_partitions_take_the_larger_of_their_parts_of_memory_and_compute(tmp_path, monkeypatch):
    h100 = gpus("mixed")
    partitioned = next(gpu for gpu in h100 if len(gpu.partitions) > 1)
    node = Node(tmp_path, monkeypatch, build_inventory(Facts("simulated", (partitioned,))))
    devices = [device for device in node.inventory.devices if device.partition is not None]
    node.prepare(devices[0].name)
    node.turn(seconds=100)
    profile = devices[0].partition.profile
    assert {labels[3]: value for labels, value in node.shown("dra_allocated_seconds_total").items()} == {profile: 100}
    kind = next(one for one in partitioned.mig_profiles if one.gi_profile_id == devices[0].partition.gi_profile_id)
    part = max(
        kind.size / max(one.size for one in partitioned.mig_profiles),
        kind.slices / max(one.slices for one in partitioned.mig_profiles),
    )
    assert node.total("dra_unclaimed_seconds_total") == pytest.approx(100 * (1 - part), abs=0.001)
    assert node.shown("dra_gpu_part") == {(partitioned.product_name, profile): pytest.approx(part, abs=1e-6)}
    ((labels, seconds),) = node.shown("dra_claim_allocated_seconds_total").items()
    assert seconds == 100
    assert labels[-3:] == (partitioned.product_name, profile, "node-1/gpu.nvidia.com")
    node.ledger.close()


def test_no_total_falls_because_shares_are_added_up_in_another_order(tmp_path, monkeypatch):
    """A share that has ended is among the saved seconds, which come first: a sum of thirds may then be less."""
    rule = "{match: {types: [gpu]}, replicas: 3, sharing: {strategy: TimeSlicing}}"
    (tmp_path / "rules.yaml").write_text(f"version: rules/v1\nrules: [{rule}]\n")
    rules = replace(read_sharing_config(tmp_path / "rules.yaml"), node="node-1")
    node = Node(tmp_path, monkeypatch, build_inventory(Facts("simulated", GPUS), sharing=rules))
    shares = []
    for index, seconds in enumerate((33, 28, 33)):
        shares.append(node.prepare(f"{NAMES[0]}-share-{index}"))
        node.wait(seconds)
    node.turn()
    before = node.total("dra_allocated_seconds_total")
    node.unprepare(shares[2])
    node.turn()
    assert node.total("dra_allocated_seconds_total") >= before
    node.ledger.close()
