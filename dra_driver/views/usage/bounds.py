"""Bounds: what an agent reports of its node, cut to what can be true according to the API server.

In: the claims and totals of an agent's page, and what the API server has of the node. Out: the same, each no larger
than possible, and a sentence for each cut. A claim can't have had more devices than it was allocated, nor for longer
than it has existed; a node can't have given away more than its devices, nor for longer than its Node has existed. What
the API server does not have bounds nothing: claims that were deleted, nodes without slices.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeVar

from dra_driver.kube import paths
from dra_driver.kube.api import KubeApi
from dra_driver.kube.pages import objects
from dra_driver.model.errors import ApiError
from dra_driver.model.wire import Wire
from dra_driver.views.usage.profiles import gpu_part_of
from dra_driver.views.usage.usage_counts import ClaimUsage, GpuParts, NamespaceUsage, PageSums, UnclaimedTime

SLACK_SECONDS = 300.0  # by how much the clocks of a node and of the API server may differ
MAX_NAMED = 5
_TOGETHER = 1.1  # the parts of a GPU may add up to more than 1: a 3g and a 4g partition take 3/7 or 4/8, and 4/7
_MIN_PART = 1 / 8  # no partition is smaller, whatever an agent says
_Hours = TypeVar("_Hours", ClaimUsage, NamespaceUsage)


@dataclass(frozen=True, slots=True)
class KnownClaim:
    """A claim of the API server: when it was created (None if unknown), and its devices by pool ("POOL/DRIVER")."""

    name: str
    created: float | None
    devices: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class KnownCluster:
    """What the API server has: claims by UID, devices by pool, and when each Node was created.

    `notes` say what could not be read.
    """

    claims: Mapping[str, KnownClaim] = field(default_factory=dict)
    devices: Mapping[str, int] = field(default_factory=dict)
    nodes: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_cluster(api: KubeApi, namespace: str = "") -> KnownCluster:
    """Read what bounds the reports of agents; `namespace` is the only one whose claims are wanted, "" for all."""
    notes: list[str] = []

    def read(what: str, path: str, add: Callable[[Wire], None]) -> None:
        try:
            for one in objects(api, path):
                add(one)
        except ApiError as error:
            notes.append(f"what agents report is not compared with the {what}: {error.message[:200]}")

    claims: dict[str, KnownClaim] = {}
    devices: Counter[str] = Counter()
    nodes: dict[str, float] = {}

    def add_node(wire: Wire) -> None:
        created = _created(wire)
        if created is not None:
            nodes[wire["metadata"]["name"]] = created

    def add_slice(wire: Wire) -> None:
        devices[f"{wire['spec']['pool']['name']}/{wire['spec']['driver']}"] += len(wire["spec"].get("devices") or ())

    read("claims", paths.within(paths.CLAIMS, namespace) if namespace else paths.CLAIMS, lambda one: _add(claims, one))
    read("slices", paths.SLICES, add_slice)
    read("nodes", paths.NODES, add_node)
    return KnownCluster(claims, devices, nodes, tuple(notes))


@dataclass(frozen=True, slots=True)
class NodeBounds:
    """The bounds of one node's report at `now`, in seconds since 1970."""

    known: KnownCluster
    node: str
    now: float

    def cut(self, page: PageSums) -> tuple[PageSums, tuple[str, ...]]:
        """Return the page, reduced to what can be true of its node, and a sentence for each reduction."""
        claims = tuple(self._claims(page.claims))
        totals, unclaimed, text = self._totals(page)
        kept = tuple(one for one, _ in claims)
        cuts = dict.fromkeys(filter(None, (text, *(cut for _, cut in claims))))
        return PageSums(kept, totals, unclaimed, page.parts), tuple(cuts)

    def _claims(self, rows: Sequence[ClaimUsage]) -> Iterator[tuple[ClaimUsage, str]]:
        """Yield each claim, cut if it has to be, and a sentence about the cut, "" if there was none."""
        reported: dict[tuple[str, str], float] = {}
        for one in rows:
            reported[one.uid, one.pool] = reported.get((one.uid, one.pool), 0.0) + one.allocated_s
        for one in rows:
            known = self.known.claims.get(one.uid)
            name = f"{one.namespace}/{one.name}"
            if known is not None and known.name != name:
                yield _scaled(one, 0.0), f"claim {name}, whose UID is that of {known.name}"
                continue
            whole = reported[one.uid, one.pool]
            maximum = self._max_of_claim(known, one.pool)
            text = f"claim {name} from {_hours(whole)} to {_hours(maximum)}" if whole > maximum else ""
            yield (_scaled(one, maximum / whole) if text else one), text

    def _totals(self, page: PageSums) -> tuple[tuple[NamespaceUsage, ...], tuple[UnclaimedTime, ...], str]:
        """Return the totals and the unclaimed time, cut if they have to be, and a sentence about the cut."""
        rows, free = page.totals, page.unclaimed
        whole = sum(one.allocated_s * _part(one, page.parts) for one in rows) + sum(one.seconds for one in free)
        devices = sum(count for pool, count in self.known.devices.items() if pool.partition("/")[0] == self.node)
        maximum = self._age(self.known.nodes.get(self.node)) * devices * _TOGETHER if devices else math.inf
        if whole <= maximum:
            return rows, free, ""
        factor = maximum / whole
        free = tuple(replace(one, seconds=one.seconds * factor) for one in free)
        text = f"all GPUs from {_hours(whole)} to {_hours(maximum)}"
        return tuple(_scaled(one, factor) for one in rows), free, text

    def _max_of_claim(self, known: KnownClaim | None, pool: str) -> float:
        """Return the maximum of a claim's device-seconds; if it has no device here now, of any in the pool."""
        age = self._age(self.known.nodes.get(self.node))
        devices = self.known.devices.get(pool)
        if known is not None:
            age = min(age, self._age(known.created))
            devices = known.devices.get(pool, devices)
        return age * devices if devices else math.inf

    def _age(self, created: float | None) -> float:
        return math.inf if created is None else max(0.0, self.now - created) + SLACK_SECONDS


def _part(one: NamespaceUsage, parts: GpuParts) -> float:
    known = parts.get((one.model, one.profile))
    part = known if known is not None and 0 < known <= 1 else gpu_part_of(one.model, one.profile)
    return max(_MIN_PART, part)


def _scaled(one: _Hours, factor: float) -> _Hours:
    return replace(
        one,
        allocated_s=one.allocated_s * factor,
        busy_s=one.busy_s * factor,
        measured_s=one.measured_s * factor,
    )


def notes_of_cuts(cuts: Collection[str]) -> tuple[str, ...]:
    """Return a note that names some of the cuts and counts the others; none if nothing was cut."""
    if not cuts:
        return ()
    more = f"; and {len(cuts) - MAX_NAMED} more" if len(cuts) > MAX_NAMED else ""
    named = "; ".join(sorted(cuts)[:MAX_NAMED])
    return (f"agents report more than can be true according to the API server, which was cut: {named}{more}",)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} h"


def _add(claims: dict[str, KnownClaim], wire: Wire) -> None:
    metadata = wire["metadata"]
    allocation = (wire.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    devices = Counter(f"{one['pool']}/{one['driver']}" for one in results)
    claims[metadata["uid"]] = KnownClaim(f"{metadata['namespace']}/{metadata['name']}", _created(wire), devices)


def _created(wire: Wire) -> float | None:
    try:
        return datetime.fromisoformat(str(wire["metadata"].get("creationTimestamp"))).timestamp()
    except ValueError:
        return None
