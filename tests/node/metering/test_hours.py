"""Hours go to the claim and the namespace that had the devices, whatever happens to agents, clocks and the ledger."""

import json
import random
import sqlite3
import time
from collections import defaultdict
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from dra_driver.base.errors import ExitCode
from dra_driver.hardware.metered import MeterPlan
from dra_driver.hardware.nvidia.metering import NvidiaMeter
from dra_driver.hardware.simulated.hardware import SimulatedMeter
from dra_driver.hardware.simulated.profile import load_profile
from dra_driver.hardware.simulated.profile_facts import facts_of
from dra_driver.node.ledger.spans import MAX_OFF_SECONDS
from dra_driver.tools.main import run
from dra_driver.tools.usage.from_agents import _counted
from dra_driver.tools.usage.from_prometheus import samples_of_page
from tests.node.metering.support.counted_node import ALLOCATED, NAMES, OF_CLAIM, CountedNode
from tests.support.metering.metered_node import profile
from tests.support.metering.prometheus_double import PrometheusDouble
from tests.support.metering.snapshots import samples

TEN_YEARS = 315_360_000.0
BEGIN = datetime(2026, 11, 2, 6, tzinfo=UTC)


@pytest.fixture
def node(tmp_path, monkeypatch):
    made = CountedNode(tmp_path, monkeypatch)
    yield made
    for agent in made.agents:
        agent.ledger.close()


def by_namespace(node):
    return node.sums(ALLOCATED, "namespace")


def test_a_claim_after_another_is_charged_to_its_own_namespace(node):
    node.turn()
    first = node.prepare(NAMES[0], namespace="team-a")
    node.wait(10)
    node.turn()
    node.wait(10)
    node.unprepare(first.uid)
    node.turn()
    node.prepare(NAMES[0], namespace="team-b")
    for _ in range(10):
        node.wait(10)
        node.turn()
    assert by_namespace(node) == {"team-a": 20, "team-b": 100}
    assert sorted(node.sums(OF_CLAIM, "dra_claim_uid").values()) == [20, 100]


def test_hours_of_a_lost_ledger_stay_those_of_their_namespace(node):
    node.prepare(NAMES[0], namespace="team-a")
    node.turn()
    node.wait(10)
    node.turn()
    for path in node.folder.glob("ledger.db*"):
        path.unlink()
    node.prepare(NAMES[1], namespace="team-b")
    node.wait(10)
    node.turn()
    assert by_namespace(node) == {"team-a": 10, "team-b": 10}
    node.hand_over(is_killed=True)
    node.turn()
    assert by_namespace(node) == {"team-a": 10, "team-b": 10}


def test_ten_years_forward_for_six_seconds_add_six_seconds(node):
    lasting, ended = node.prepare(NAMES[0]), node.prepare(NAMES[1], namespace="other")
    node.wait(10)
    node.turn()
    node.wall += TEN_YEARS
    node.wait(3)
    node.turn()
    node.prepare(NAMES[2], namespace="new")
    node.unprepare(ended.uid)
    node.wait(3)
    node.turn()
    node.wall -= TEN_YEARS
    node.turn()
    assert by_namespace(node) == {"team": 16, "other": 13, "new": 3}
    node.hand_over(is_killed=True)
    node.turn()
    assert by_namespace(node) == {"team": 16, "other": 13, "new": 3}
    assert node.sums(OF_CLAIM, "dra_claim_uid")[lasting.uid] == 16


def test_a_clock_that_is_set_back_for_good_costs_no_second_across_a_change_of_agents(node):
    node.prepare(NAMES[0])
    node.wait(1000)
    node.turn()
    node.wall -= 3600
    node.wait(10)
    node.hand_over(is_killed=False)
    node.turn()
    assert by_namespace(node) == {"team": 1010}


def test_an_agent_that_divides_gpus_otherwise_changes_no_hours_of_running_claims(node):
    node.agents[0].ledger.close()
    node.agents = []
    node.begin(4)
    node.prepare(f"{NAMES[0]}-share-1", 0.25)
    node.wait(1000)
    node.turn()
    node.begin(2)
    node.hand_over(is_killed=True)
    node.wait(1000)
    node.turn()
    assert by_namespace(node) == {"team": 500}


@pytest.mark.parametrize("is_committed_late", [True, False])
def test_what_a_share_counts_is_recorded_when_it_is_prepared(node, is_committed_late):
    node.begin(4)
    node.prepare(f"{NAMES[0]}-share-1", 0.25, agent=node.agents[1], is_committed_late=is_committed_late)
    node.wait(100)
    node.turn()  # the agent with the role has never divided a GPU
    assert by_namespace(node) == {"team": 25}
    assert set(node.sums(ALLOCATED, "model")) == {"NVIDIA H100 80GB HBM3"}


def test_a_claim_that_is_prepared_again_has_one_series_that_goes_on(node):
    uid = node.prepare(NAMES[0]).uid
    node.wait(100)
    node.turn()
    node.unprepare(uid)
    node.wait(50)
    node.turn()
    node.prepare(NAMES[0], uid=uid)
    node.wait(30)
    node.turn()
    assert node.sums(OF_CLAIM, "dra_claim_uid") == {uid: 130}
    node.unprepare(uid)
    node.turn()
    node.wait(10_000)
    node.turn()
    assert node.sums(OF_CLAIM, "dra_claim_uid") == {}
    node.hand_over(is_killed=True)
    node.prepare(NAMES[1], uid=uid)
    node.wait(7)
    node.turn()
    assert node.sums(OF_CLAIM, "dra_claim_uid") == {uid: 137}
    assert by_namespace(node) == {"team": 137}


def test_a_claim_that_ended_just_before_the_agent_is_still_shown_by_the_next_one(node):
    uid = node.prepare(NAMES[0]).uid
    node.wait(100)
    node.unprepare(uid)
    node.turn()
    node.wait(60)
    node.hand_over(is_killed=True)
    node.turn()
    assert node.sums(OF_CLAIM, "dra_claim_uid") == {uid: 100}
    (shown,) = (one for one in samples(node.agent.meter.page()) if one.name == OF_CLAIM)
    assert (shown.labels["namespace"], shown.labels["dra_claim_name"]) == ("team", uid)
    node.wait(300)
    node.turn()
    assert node.sums(OF_CLAIM, "dra_claim_uid") == {}


def test_a_claim_whose_preparation_fails_is_never_shown(node):
    failed = node.prepare(NAMES[0], fails=True)
    node.wait(30)
    node.turn()
    assert by_namespace(node) == {}
    node.agent.ledger.forget(failed)
    node.turn()
    assert by_namespace(node) == {}


@pytest.mark.parametrize(("step", "counted"), [(0, 700), (-500, 200), (-TEN_YEARS, 80), (TEN_YEARS, None)])
def test_a_reboot_counts_by_the_wall_clock_and_no_more_than_a_day(node, step, counted):
    node.prepare(NAMES[0])
    node.wait(80)
    node.turn()
    node.reboot(600, step=step)
    node.turn()
    expected = 100 + MAX_OFF_SECONDS if counted is None else counted
    assert by_namespace(node) == {"team": pytest.approx(expected)}


def test_a_change_of_the_boot_id_alone_adds_nothing(node):
    """Neither its time since boot nor anything else may count twice if a node was not really off."""
    node.prepare(NAMES[0])
    node.wait(80)
    node.turn()
    node.boot, node.up = "another", 1e7
    node.begin()
    node.hand_over(is_killed=True)
    node.wait(5)
    node.turn()
    assert by_namespace(node) == {"team": 85}


def test_a_span_is_settled_once_even_if_an_agent_without_the_role_settles_it_too(node):
    uid = node.prepare(NAMES[0]).uid
    node.turn()
    node.begin()
    late = node.agents[1].meter
    node.wait(100)
    node.unprepare(uid)
    turn = late._ledger.spans.turn
    time_and_spans = turn()
    node.turn()
    late._ledger.spans.turn = lambda: time_and_spans  # it has read the spans just before the other settled them
    late._turn()
    late._ledger.spans.turn = turn
    node.hand_over(is_killed=True)
    node.turn()
    assert by_namespace(node) == {"team": 100}


def test_a_turn_that_was_under_way_when_the_role_was_lost_shows_nothing(node):
    node.prepare(NAMES[0])
    meter = node.agent.meter
    report = meter._hardware.meter_report

    def lose_role():
        meter.stop()
        return report()

    meter._hardware.meter_report = lose_role
    meter._turn()
    assert meter.page() == b""


# -- agents of release 0.2.0 beside this one, and after a downgrade ----------------------------------------------------

SCHEMA_OF_1_4 = (
    """CREATE TABLE claims (
        uid TEXT PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL, boot_id TEXT NOT NULL,
        allocation TEXT NOT NULL, steps TEXT NOT NULL, gone_since REAL, gone_boot TEXT NOT NULL DEFAULT '')
        WITHOUT ROWID""",
    """CREATE TABLE holds (
        device TEXT NOT NULL, claim_uid TEXT NOT NULL, share_id TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (device, claim_uid, share_id)) WITHOUT ROWID""",
    "CREATE INDEX holds_of_claim ON holds (claim_uid)",
    """CREATE TABLE spans (
        id INTEGER PRIMARY KEY, claim_uid TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
        allocation TEXT NOT NULL, began REAL NOT NULL, ended REAL)""",
    "CREATE INDEX spans_of_claim ON spans (claim_uid)",
    """CREATE TABLE usage_totals (
        key TEXT PRIMARY KEY, allocated REAL NOT NULL, busy REAL NOT NULL, measured REAL NOT NULL) WITHOUT ROWID""",
)
OLD_BEGIN = (
    "INSERT INTO spans (claim_uid, namespace, name, allocation, began) SELECT ?, ?, ?, ?, ? "
    "WHERE NOT EXISTS (SELECT 1 FROM spans WHERE claim_uid = ? AND ended IS NULL)"
)
OLD_END = "UPDATE spans SET ended = max(began, ?) WHERE claim_uid = ? AND ended IS NULL"


def as_old(node, *statements):
    with closing(sqlite3.connect(node.folder / "ledger.db")) as connection, connection:
        return [connection.execute(sql, values).fetchall() for sql, *values in [(s[0], *s[1:]) for s in statements]]


def old_prepare(node, namespace):
    """Prepare a claim as 0.2.0 does."""
    node.agent.ledger.keeps_spans = False
    record = node.prepare(NAMES[1], namespace=namespace)
    node.agent.ledger.keeps_spans = True
    allocation = json.dumps(record.allocation)
    as_old(node, (OLD_BEGIN, record.uid, namespace, record.uid, allocation, node.wall, record.uid))
    return record


def old_unprepare(node, record):
    as_old(
        node,
        (OLD_END, node.wall, record.uid),
        ("DELETE FROM holds WHERE claim_uid = ?", record.uid),
        ("DELETE FROM claims WHERE uid = ?", record.uid),
    )


def test_hours_of_an_older_agent_beside_this_one_are_counted_once(node):
    node.turn()
    record = old_prepare(node, "old")
    node.wait(40)
    node.turn()
    assert by_namespace(node) == {"old": 40}
    node.wait(5)
    old_unprepare(node, record)
    again = old_prepare(node, "next")  # SQLite gives it the same number
    node.wait(5)
    node.turn()
    assert by_namespace(node) == {"old": 45, "next": 5}
    node.unprepare(again.uid)
    short = old_prepare(node, "short")
    node.wait(3)
    old_unprepare(node, short)
    node.turn()
    assert by_namespace(node) == {"old": 45, "next": 5, "short": 3}


def test_an_older_agent_s_clock_adds_no_more_than_the_time_since_boot(node):
    node.wall += TEN_YEARS
    node.up = 500.0
    node.wall -= TEN_YEARS
    old_prepare(node, "old")
    node.wait(6)
    node.wall += TEN_YEARS
    node.turn()
    assert by_namespace(node)["old"] <= 506


def test_a_ledger_of_0_2_0_keeps_its_hours_and_0_2_0_can_use_it_afterwards(node):
    node.agent.ledger.close()
    for path in node.folder.glob("ledger.db*"):
        path.unlink()
    node.agents = []
    as_old(
        node,
        *((line,) for line in SCHEMA_OF_1_4),
        ("INSERT INTO usage_totals VALUES (?, 1000, 500, 800)",
         '["claims","team","gpu.nvidia.com","NVIDIA H100 80GB HBM3","gpu"]'),
        ("PRAGMA user_version=1004",),
    )  # fmt: skip
    allocation = json.dumps({"devices": [{"device": NAMES[0], "deviceClass": "gpu.nvidia.com", "pool": "p",
                                          "request": "r", "driver": "gpu.nvidia.com"}]})  # fmt: skip
    as_old(
        node,
        ("INSERT INTO claims VALUES ('u', 'team', 'c', 'prepared', 'boot-before', ?, '[]', NULL, '')", allocation),
        (OLD_BEGIN, "u", "team", "c", allocation, node.wall - 40 * 86400, "u"),
        ("INSERT INTO spans (claim_uid, namespace, name, allocation, began, ended) VALUES ('v', 'team', 'd', ?, ?, ?)",
         allocation, node.wall - 50, node.wall - 20),
    )  # fmt: skip
    node.begin()
    node.turn()
    assert by_namespace(node) == {"team": pytest.approx(1000 + 40 * 86400 + 30)}
    node.agent.ledger.close()
    (claims,), ((_, began, ended),), _ = as_old(
        node,
        ("SELECT uid, state FROM claims",),
        ("SELECT id, began, ended FROM spans ORDER BY id",),
        (OLD_BEGIN, "w", "team", "e", allocation, node.wall, "w"),
    )
    assert (claims, began, ended) == (("u", "prepared"), node.wall - 40 * 86400, None)
    node.agents = []
    node.begin()
    node.turn()


# -- the model --------------------------------------------------------------------------------------------------------


class Scraped:
    """A series as a Prometheus has it: the samples of its scrapes, by hour."""

    def __init__(self, name, labels):
        self.name, self.labels, self.samples = name, labels, []

    @property
    def first(self):
        return self.samples[0][0]

    @property
    def last(self):
        return self.samples[-1][0]

    def at(self, hour):
        found = [value for at, value in self.samples if hour - 300 / 3600 <= at <= hour]
        return found[-1] if found else None


class Storm:
    """Operations at random, each followed by the check that is cheap, and at the end by the one that is not."""

    def __init__(self, node, seed):
        self.node, self.random, self.ended = node, random.Random(seed), []
        self.series = {}
        self.skew = 0.0

    def step(self):
        operations = [
            (self.prepare, 8), (self.unprepare, 6), (self.again, 2), (self.fail, 1), (self.wait, 8), (self.start, 1),
            (self.end, 1), (self.kill, 1), (self.swap, 1), (self.jump, 2), (self.set_right, 1), (self.reboot, 0.3),
        ]  # fmt: skip
        pick = self.random.choices([one for one, _ in operations], [weight for _, weight in operations])[0]
        pick()
        self.turn()

    def agent(self):
        return self.random.choice(self.node.agents)

    def prepare(self):
        agent, number = self.agent(), len(self.node.holdings)
        gpu = self.random.choice(NAMES)
        device = gpu if agent.replicas == 1 else f"{gpu}-share-{self.random.randrange(agent.replicas)}"
        used = {used.partition("-share-")[0] if agent.replicas == 1 or "-share-" not in used else used
                for _, used, _ in self.node.records.values()}  # fmt: skip
        if device in used or gpu in used:
            return
        self.node.prepare(
            device, 1 / agent.replicas, f"team-{number % 2}", agent=agent,
            is_committed_late=self.random.random() < 0.3,
        )  # fmt: skip

    def unprepare(self):
        if self.node.records:
            uid = self.random.choice(sorted(self.node.records))
            self.ended.append((uid, self.node.records[uid]))
            self.node.unprepare(uid, agent=self.agent())

    def again(self):
        whole = [agent for agent in self.node.agents if agent.replicas == 1]
        free = [
            (uid, found) for uid, found in self.ended[-5:] if uid not in self.node.records and found[2] == 1
            and not any(used.startswith(found[1]) for _, used, _ in self.node.records.values())
        ]  # fmt: skip
        if free and whole:
            uid, (record, device, _) = free[-1]
            self.node.prepare(device, 1.0, record.namespace, agent=whole[0], uid=uid)

    def fail(self):
        agent, used = self.agent(), {used.partition("-share-")[0] for _, used, _ in self.node.records.values()}
        free = [name for name in NAMES if name not in used]
        if free and agent.replicas == 1:
            record = self.node.prepare(free[0], agent=agent, fails=True)
            self.turn()
            agent.ledger.forget(record)

    def wait(self):
        for _ in range(self.random.randrange(1, 6)):
            self.node.wait(self.random.uniform(0, 15))
            self.turn()

    def start(self):
        if len(self.node.agents) < 2:
            self.node.begin(self.random.choice([1, 2, 4]))

    def end(self):
        self.node.hand_over(is_killed=False)

    def kill(self):
        self.node.hand_over(is_killed=True)
        self.node.wait(self.random.uniform(0, 30))

    def swap(self):
        if len(self.node.agents) > 1:
            self.node.pass_role()

    def jump(self):
        step = self.random.choice([3600, -3600, TEN_YEARS, -TEN_YEARS, 200, -200])
        self.node.wall, self.skew = self.node.wall + step, self.skew + step

    def set_right(self):
        self.node.wall, self.skew = self.node.wall - self.skew, 0.0

    def reboot(self):
        self.node.reboot(self.random.uniform(60, 3600))

    def turn(self):
        node = self.node
        page = node.turn()
        assert by_namespace(node) == pytest.approx(node.held("namespace"), abs=0.5)
        claims = node.held("uid")
        for uid, seconds in node.sums(OF_CLAIM, "dra_claim_uid").items():
            assert seconds == pytest.approx(claims[uid], abs=0.5), uid
        assert node.sums(OF_CLAIM, "dra_claim_uid").keys() >= node.records.keys()
        for one in samples(page):
            key = one.name, *sorted(one.labels.items())
            series = self.series.setdefault(key, Scraped(one.name, one.labels))
            series.samples.append((node.now / 3600, one.value))

    def check_usage(self, capsys):
        node, model = self.node, self.node.held("namespace")
        sums = _counted(list(samples_of_page(node.agent.meter.page().decode(), "dra_", "agent")), "")
        found = defaultdict(float)
        for one in sums.totals:
            found[one.namespace] += one.allocated_s
        assert found == pytest.approx(model, abs=0.5)
        double = PrometheusDouble(list(self.series.values()), BEGIN)
        try:
            period = ["--from", BEGIN.isoformat(), "--to", (BEGIN + timedelta(seconds=node.now + 1)).isoformat()]
            for by, held in (("namespace", model), ("claim", node.held("uid"))):
                status = run(["usage", "--prometheus", double.url, *period, "--by", by, "-o", "json"])
                out, err = capsys.readouterr()
                assert status == ExitCode.OK, err
                rows = {row["name"]: row["allocatedHours"] * 3600 for row in json.loads(out)["rows"]}
                first = {key: series.samples[0][1] for key, series in self.series.items() if key[0] == ALLOCATED}
                slack = sum(first.values()) + 1 if by == "namespace" else 1
                for name, seconds in held.items():
                    shown = rows.get(name, sum(value for row, value in rows.items() if row.endswith(f"/{name}")))
                    assert shown == pytest.approx(seconds, abs=slack), (by, name)
        finally:
            double.stop()


@pytest.mark.parametrize("seed", range(6))
def test_pages_usage_and_prometheus_agree_with_who_held_what(tmp_path, monkeypatch, capsys, seed):
    node = CountedNode(tmp_path, monkeypatch)
    storm = Storm(node, seed)
    storm.turn()
    for _ in range(250):
        storm.step()
    monkeypatch.undo()
    storm.check_usage(capsys)
    for agent in node.agents:
        agent.ledger.close()


def test_readings_have_a_time_that_no_step_of_the_clock_changes(tmp_path):
    """Else a holder would be measured for longer than it was, or no new readings taken."""
    machine = load_profile(profile(tmp_path))
    meter = SimulatedMeter(MeterPlan(0.0, False, lambda: None))
    report = meter.report(facts_of(machine, "node-1"), {gpu.pci_address: gpu for gpu in machine.gpus})
    assert report.readings[0].at == pytest.approx(time.monotonic(), abs=60)
    assert NvidiaMeter(MeterPlan(0.0, False, lambda: None)).clock() == pytest.approx(time.monotonic(), abs=60)
