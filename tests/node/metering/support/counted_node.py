"""A node whose hours are counted by clocks that tests set: real ledgers and meters, beside a model of who held what.

Only clocks, hardware and kubelet are stand-ins. `Holding` is the model: it knows no spans, clocks of the node, agents.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from types import SimpleNamespace

from dra_driver.hardware.facts import Facts
from dra_driver.hardware.metered import MeterReport
from dra_driver.node.claims.allocated import AllocatedClaim, AllocatedDevice
from dra_driver.node.claims.config_schema import read_sharing_config
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.record import ClaimRecord, ClaimState, record_of_claim
from dra_driver.node.metering.billing import Selection
from dra_driver.node.metering.claim_tally import MeterSettings, NodeMeter
from tests.support.metering.snapshots import STYLE, gpus, samples

GPUS = gpus()[:4]
NAMES = [f"gpu-{gpu.pci_address.replace(':', '-').replace('.', '-')}" for gpu in GPUS]
POOL = "node-1/gpu.nvidia.com"
SHARED = "version: rules/v1\nrules: [{{match: {{types: [gpu]}}, replicas: {}, sharing: {{strategy: TimeSlicing}}}}]\n"
ALLOCATED, OF_CLAIM = "dra_allocated_seconds_total", "dra_claim_allocated_seconds_total"


@dataclass
class Holding:
    """A claim held a part of a GPU from one true time to another."""

    namespace: str
    uid: str
    part: float
    began: float
    ended: float | None = None

    def seconds(self, now: float) -> float:
        return self.part * ((now if self.ended is None else self.ended) - self.began)


class Instance:
    """One agent's ledger and meter, with the inventory that it offers."""

    def __init__(self, node: CountedNode, replicas: int) -> None:
        self.ledger = Ledger(node.folder / "ledger.db", boot_id=node.boot)
        hardware = SimpleNamespace(meter_report=MeterReport, end_metering=lambda: None)
        kubelet = SimpleNamespace(pods=lambda: SimpleNamespace(users={}))
        self.replicas, self.offered = replicas, SimpleNamespace(current=node.inventory(replicas))
        settings = MeterSettings(STYLE, Selection(()), pool=POOL, has_common_names=False)
        self.meter = NodeMeter(
            hardware, self.ledger, kubelet, settings=settings, inventory=self.offered, clock=lambda: node.wall
        )

    def take_role(self) -> None:
        self.meter._loop._over.clear()  # `start` would begin turns of its own
        self.meter._is_billing = False


class CountedNode:
    """`now` is the true time; the node has only `wall`, `up` and `boot`, its clocks and the id of its boot."""

    def __init__(self, folder, monkeypatch) -> None:
        self.folder, self.now = folder, 0.0
        self.wall, self.up, self.boot = 1_790_000_000.0, 5_000.0, "boot-0"
        self.holdings: list[Holding] = []
        self.numbers = itertools.count()
        self.records: dict[str, tuple[ClaimRecord, str, float]] = {}
        self.shown: dict[tuple, float] = {}
        monkeypatch.setattr("time.time", lambda: self.wall)
        monkeypatch.setattr("dra_driver.node.ledger.spans.boot_seconds", lambda: self.up, raising=False)
        self.agents = [Instance(self, 1)]

    @property
    def agent(self) -> Instance:
        """The instance that has the role."""
        return self.agents[0]

    def inventory(self, replicas: int):
        path = self.folder / f"rules-{replicas}.yaml"
        path.write_text(SHARED.format(replicas))
        rules = replace(read_sharing_config(path), node="node-1") if replicas > 1 else None
        return build_inventory(Facts("simulated", GPUS), **({"sharing": rules} if rules else {}))

    # -- what happens --------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        self.now, self.wall, self.up = self.now + seconds, self.wall + seconds, self.up + seconds

    def begin(self, replicas: int = 1) -> None:
        """Start one more instance, which has no role yet."""
        self.agents.append(Instance(self, replicas))

    def hand_over(self, *, is_killed: bool) -> None:
        """End the instance that has the role; the next one gets it."""
        gone = self.agents.pop(0)
        if not is_killed:
            gone.meter.stop()
        gone.ledger.close()
        if not self.agents:
            self.begin()
        self.agent.take_role()

    def pass_role(self) -> None:
        """Let the instance that has the role lose it, without ending."""
        self.agent.meter.stop()
        self.agents.append(self.agents.pop(0))
        self.agent.take_role()

    def reboot(self, off: float, *, step: float = 0.0) -> None:
        """Turn the node off for a time, after which its wall clock is off by a step."""
        for gone in self.agents:
            gone.ledger.close()
        self.now, self.wall, self.up = self.now + off, self.wall + off + step, 0.0
        self.boot = f"boot-{next(self.numbers)}"
        self.wait(20)
        self.agents = [Instance(self, 1)]

    def prepare(self, device, part=1.0, namespace="team", *, agent=None, is_committed_late=False, uid="", fails=False):
        number = next(self.numbers)
        uid, agent = uid or f"uid-{number}", agent or self.agent
        found = AllocatedDevice("gpu", POOL, device, device_class="gpu.nvidia.com")
        claim = AllocatedClaim(uid, namespace, uid, (found,), pods=(f"pod-{number}",))
        state = ClaimState.PREPARING if is_committed_late or fails else ClaimState.PREPARED
        record = ClaimRecord(uid, namespace, uid, state, self.boot, record_of_claim(claim), ())
        assert not agent.ledger.intend(record, claim)
        if fails:
            return record
        if is_committed_late:
            agent.ledger.commit(uid)
        self.records[uid] = (replace(record, state=ClaimState.PREPARED), device, part)
        self.holdings.append(Holding(namespace, uid, part, self.now))
        return record

    def unprepare(self, uid: str, *, agent=None) -> None:
        record, _, _ = self.records.pop(uid)
        (agent or self.agent).ledger.forget(record)
        next(one for one in self.holdings if one.uid == uid and one.ended is None).ended = self.now

    # -- what is seen --------------------------------------------------------------------------------------------------

    def turn(self) -> bytes:
        """Take a turn of the meter that has the role, and check its page against the model and the page before."""
        self.agent.meter._turn()
        page = self.agent.meter.page()
        found: dict[tuple, float] = {}
        for one in samples(page):
            key = (one.name, *sorted(one.labels.items()))
            assert key not in found, f"{key} twice"
            found[key] = one.value
        for key, value in found.items():
            if key[0].endswith("_seconds_total"):
                assert value >= self.shown.get(key, 0.0) - 0.0015, (key, self.shown.get(key), value)
        assert {key for key in self.shown if key[0] == ALLOCATED} <= found.keys()
        self.shown.update(found)
        return page

    def sums(self, name: str, label: str) -> dict[str, float]:
        """Return what the page shows under a name, by a label."""
        sums: dict[str, float] = {}
        for one in samples(self.agent.meter.page()):
            if one.name == name:
                sums[one.labels[label]] = sums.get(one.labels[label], 0.0) + one.value
        return sums

    def held(self, by: str) -> dict[str, float]:
        """Return the model's device-seconds until now, by an attribute of holdings."""
        sums: dict[str, float] = {}
        for one in self.holdings:
            key = getattr(one, by)
            sums[key] = sums.get(key, 0.0) + one.seconds(self.now)
        return sums
