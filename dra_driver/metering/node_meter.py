"""NodeMeter: the metering of one node, while its agent has the node's role.

In: the hardware's readings, the ledger, the inventory, the kubelet's pods. Out: text for /metrics, made at every beat
and soon after a claim was prepared or unprepared. A scrape gets the text that is in memory: it asks neither a device
nor the ledger. While the hardware does not answer, the last readings are published, and their published age grows.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dra_driver.hardware.metered import Measure, MeterPlan, MeterReport
from dra_driver.hardware.metric_names import RECENT_CLOCK_EVENTS
from dra_driver.hardware.port import Metered
from dra_driver.inventory.offering import CurrentInventory, Inventory
from dra_driver.metering.billing import Billing
from dra_driver.metering.charges import charges_of, text_of_charges
from dra_driver.metering.claim_tally import ClaimTallies
from dra_driver.metering.holders import Holder, Subject, holders_of
from dra_driver.metering.measured import Intervals
from dra_driver.metering.own_series import ReadingAges, claim_lines, xid_lines
from dra_driver.metering.plausibility import without_implausible_values
from dra_driver.metering.recent import RecentEvents
from dra_driver.metering.selection import Selection
from dra_driver.metering.series import MeterSnapshot, lines_of
from dra_driver.metering.subjects import LabelStyle, gpus_of
from dra_driver.model.errors import DriverError, LedgerError, NodeError
from dra_driver.model.wire import Wire
from dra_driver.plugin.instances.agent_part import AgentPart
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.ledger.record import ClaimRecord
from dra_driver.plugin.node_claims.claim_results import ClaimName
from dra_driver.plugin.node_claims.pod_resources import ClaimUser, PodResources
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.loop import Loop

log = logging.getLogger(__name__)

# The pause after a claim was prepared or unprepared, so that a burst of calls is slowed by few renderings only.
SETTLE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class MeterSettings:
    """How a node is metered. Without `has_common_names` only this driver's own series are published."""

    style: LabelStyle
    selection: Selection
    pool: str = ""
    beat_s: float = 10.0
    with_profiling: bool = False
    has_common_names: bool = True
    repeats_gpu: bool = False
    proc: Path = Path("/proc")


class NodeMeter(AgentPart):
    """The metering of one node. Any thread may call any method."""

    def __init__(
        self,
        hardware: Metered,
        ledger: Ledger,
        kubelet: PodResources,
        *,
        settings: MeterSettings,
        inventory: CurrentInventory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hardware, self._ledger, self._kubelet = hardware, ledger, kubelet
        self._settings, self._inventory, self._clock = settings, inventory, clock
        self._loop = Loop("metering", self._turn, failure="metering failed")
        self._mutex = threading.Lock()
        self._changed_at: float | None = None
        self._records: tuple[ClaimRecord, ...] = ()
        self._users: Mapping[ClaimName, tuple[ClaimUser, ...]] = {}
        self._shared: frozenset[str] = frozenset()
        self._is_kubelet_silent = False
        ledger.keeps_spans, ledger.charges_of = True, self._charges_of
        self._intervals = Intervals(settings.beat_s, settings.proc)
        self._billing = Billing(ledger.spans, settings.style.driver, settings.pool)
        self._tallies = ClaimTallies(ledger.claim_totals, settings.pool)
        self._is_billing = False
        self._adding = threading.Lock()  # held while hours are added up, which a turn that hung may do after `stop`
        self._recent = RecentEvents()
        self._page: tuple[bytes, ReadingAges | None] = (b"", None)

    def start(self) -> None:
        """Start metering, because this instance has got the node's role."""
        selected = frozenset(name.quantity for name in self._settings.selection.names)
        if RECENT_CLOCK_EVENTS in selected:
            selected |= {Measure.CLOCK_REASONS}
        plan = MeterPlan(
            self._settings.beat_s, self._settings.with_profiling, self._loop.wake, lambda: self._shared, selected
        )
        self._hardware.begin_metering(plan)
        self._is_billing = False
        self._loop.start()

    def stop(self) -> None:
        """Stop metering; nothing is published from now on."""
        self._loop.stop(1.0)
        self._hardware.end_metering()
        with self._adding:
            self._page = (b"", None)

    def claim_prepared(self) -> None:
        """Read the claims again soon."""
        self._read_soon()

    def claim_ended(self) -> None:
        """Read the claims again soon."""
        self._read_soon()

    def _read_soon(self) -> None:
        with self._mutex:
            if self._changed_at is not None:  # the loop is waiting already for the burst of calls to end
                return
            self._changed_at = time.monotonic()
        self._loop.wake()

    def page(self) -> bytes:
        """Return the text for a scrape, from memory."""
        text, ages = self._page
        return text if ages is None else text + _joined(ages.lines(self._clock()))

    def _turn(self) -> float:
        with self._mutex:
            waits_s = 0.0 if self._changed_at is None else self._changed_at + SETTLE_SECONDS - time.monotonic()
            if waits_s > 0:
                return waits_s
            self._changed_at = None
        report = without_implausible_values(self._hardware.meter_report())
        inventory = self._inventory.current
        self._read_claims()
        holders = holders_of(self._records, inventory, self._users)
        self._shared = frozenset(gpu for (gpu, _), found in holders.items() if len(found) > 1)
        with self._adding:
            if self._loop.is_stopped:
                return self._settings.beat_s
            self._bill(inventory, report, holders)
            self._recent.update(report, self._clock())
            snapshot = self._snapshot(inventory, report, holders)
            self._page = (self._text(snapshot), ReadingAges(snapshot))
        return self._settings.beat_s

    def _snapshot(
        self, inventory: Inventory, report: MeterReport, holders: Mapping[Subject, tuple[Holder, ...]]
    ) -> MeterSnapshot:
        return MeterSnapshot(
            gpus_of(inventory),
            inventory.driver_version or "",
            report,
            holders,
            self._settings.style,
            self._settings.proc,
            self._settings.repeats_gpu,
            self._recent,
        )

    def _text(self, snapshot: MeterSnapshot) -> bytes:
        lines = list(lines_of(self._settings.selection.names, snapshot)) if self._settings.has_common_names else []
        return _joined(
            [*lines, *claim_lines(snapshot), *xid_lines(snapshot), *self._billing.lines(), *self._tallies.lines()]
        )

    def _bill(self, inventory: Inventory, report: MeterReport, holders: Mapping[Subject, tuple[Holder, ...]]) -> None:
        """Add up the hours. While the ledger can't be used, they do not change, and are added up later."""
        if inventory.waiting_for:
            return
        try:
            if not self._is_billing:
                self._billing.begin()
            readings = tuple(self._intervals.of(report.readings, holders))
            now, spans = self._billing.update(inventory, readings)
            if not self._is_billing:
                self._tallies.begin(now)
                self._is_billing = True
            self._tallies.update(spans, readings, now, self._billing)
        except LedgerError as error:
            log.warning("usage is not added up", extra=fields(code=error.code, err=str(error)))

    def _charges_of(self, namespace: str, allocation: Wire) -> str:
        """Return what a claim's devices count now, for the ledger; "" if one is not known yet."""
        try:
            charges = tuple(charges_of(namespace, allocation, self._inventory.current))
        except Exception:  # whatever is wrong, no claim waits for its hours
            log.exception("what a claim counts is not known")
            return ""
        return text_of_charges(charges) if all(charge.is_known for charge in charges) else ""

    def _read_claims(self) -> None:
        """Read the claims and the pods that have them; if that fails, keep what is known."""
        try:
            self._records = self._ledger.records()
        except DriverError as error:
            log.warning("cannot read the claims in the ledger", extra=fields(code=error.code, err=str(error)))
        if not self._records:
            self._users = {}
            return
        try:
            self._users = self._kubelet.pods().users
            self._is_kubelet_silent = False
        except NodeError as error:
            if not self._is_kubelet_silent:
                log.warning(
                    "the kubelet does not list pods, so their names are taken from claims",
                    extra=fields(code=error.code, err=str(error)),
                )
            self._is_kubelet_silent = True
            self._users = {}


def _joined(lines: Iterable[str]) -> bytes:
    # A name may contain half of a surrogate pair, which UTF-8 can't encode.
    return "".join(f"{line}\n" for line in lines).encode(errors="replace")
