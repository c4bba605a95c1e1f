"""Ask the agents what they have counted, through the API server's proxy to pods, with the user's rights.

In: a cluster. Out: `UsageCounts`: totals since each agent began to count, and claims that exist or ended in the last
five minutes. A note names the agents that could not be asked. Each page has a limit of time and of size, and so have
all pages together: a page is added up as soon as it is read, and an agent whose page exceeds a limit counts as one that
could not be asked. What a page reports is cut to what can be true according to the API server, and a note says so.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

from pydantic import Field, PlainValidator

from dra_driver.base.errors import ApiError, DriverError
from dra_driver.base.text.sections import Section, Text, described, read_strictly, wrong
from dra_driver.base.wire import Wire
from dra_driver.kube import paths
from dra_driver.kube.api import KubeApi
from dra_driver.kube.watch import objects
from dra_driver.tools.usage.advice import KnownCluster, NodeBounds, notes_of_cuts, read_cluster
from dra_driver.tools.usage.from_prometheus import (
    ClaimSeries,
    Sample,
    claims_of,
    namespace_of,
    samples_of_page,
    totals_of,
)
from dra_driver.tools.usage.usage_counts import ClaimUsage, NamespaceUsage, PageSums, UnclaimedTime, UsageCounts
from dra_driver.tools.world.access import ClusterAccess

# Prices: what an hour of a GPU costs, from a table that the user writes.

_MAX = Decimal(1_000_000)


@dataclass(frozen=True, slots=True)
class NodeKind:
    """What the price of a node depends on: its instance type, and whether it is spot; "" if that is not known."""

    instance_type: str = ""
    capacity: str = ""


ANY_NODE = NodeKind()


@dataclass(frozen=True, slots=True)
class Price:
    """One row of the table. Empty texts match everything; the model may have wildcards."""

    model: str
    per_hour: Decimal
    profile: str = ""
    instance_type: str = ""
    capacity: str = ""
    source: str = ""

    def is_for(self, model: str, profile: str, node: NodeKind) -> bool:
        """Return whether the row is the price of a device of a model and profile on such a node."""
        return (
            fnmatchcase(model, self.model)
            and self.profile in {"", profile}
            and self.instance_type in {"", node.instance_type}
            and self.capacity in {"", node.capacity or "on-demand"}
        )


@dataclass(frozen=True, slots=True)
class PriceTable:
    """All prices, in one currency."""

    currency: str = "USD"
    rows: tuple[Price, ...] = ()

    def per_device_hour(self, model: str, profile: str, part: float, node: NodeKind = ANY_NODE) -> float | None:
        """Return what a device costs in an hour, or None if there is no price; `part` is its fraction of a GPU."""
        row = next((one for one in self.rows if one.is_for(model, profile, node)), None)
        if row is None:
            return None
        return float(row.per_hour) * (1.0 if row.profile else part)


def read_prices(path: Path) -> PriceTable:
    """Read a price table. Raises: InputError("input.prices") with every fault at once; InputError if unreadable."""
    table = read_strictly(path, _PriceFile, "prices", "price table", hint="the format: docs/cost.md")
    return PriceTable(table.currency, tuple(Price(**dict(row)) for row in table.prices))


def _amount(value: object) -> Decimal:
    text = str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) or Decimal(text) > _MAX:
        raise wrong(f'expected an amount of money such as "2.99", got {described(value)}')
    return Decimal(text)


class _PriceSection(Section):
    model: Text = Field(description="a model's name, which may have wildcards")
    per_hour: Annotated[Decimal, PlainValidator(_amount)] = Field(description='an amount of money such as "2.99"')
    profile: Text = ""
    instance_type: Text = ""
    capacity: Literal["", "on-demand", "spot"] = Field("", description="on-demand or spot")
    source: Text = ""


class _PriceFile(Section):
    version: Literal["prices/v1"]
    currency: str = Field("USD", pattern="^[A-Z]{3}$", description="three capital letters such as USD")
    prices: list[_PriceSection] = Field(min_length=1, description="a list of prices")


PAGE_SECONDS = 20.0
ALL_SECONDS = 300.0
PAGE_BYTES = 8 << 20  # the page of an agent with 224 tenants has half a MiB
PAGE_ROWS = 4096  # claims, totals and the like
ALL_ROWS = 500_000
AT_ONCE = 8
MAX_NAMED = 5
AGENTS = "app.kubernetes.io/name=dra-driver,app.kubernetes.io/component=agent"
_PREFIX = "dra_"
INSTANCE_TYPE = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
# Labels, in lower case, with which clouds and autoscalers mark nodes that may be taken away at any time.
SPOT = {
    "karpenter.sh/capacity-type": "spot",
    "eks.amazonaws.com/capacitytype": "spot",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-provisioning": "spot",
    "kubernetes.azure.com/scalesetpriority": "spot",
}


@dataclass(frozen=True, slots=True)
class AgentPage:
    """The address of an agent's metrics, behind the API server's proxy."""

    pod: str
    node: str
    path: str


def read_agents(access: ClusterAccess, end: datetime, namespace: str = "") -> UsageCounts:
    """Return what the agents have counted until now. Raises: ApiError if none could be asked; InputError, NodeError."""
    api = access.connect()
    try:
        return counted_by_agents(api, end, namespace)
    finally:
        api.close()


def counted_by_agents(api: KubeApi, end: datetime, namespace: str = "") -> UsageCounts:
    """Return what the agents have counted until now, with the rights of this connection.

    Raises: ApiError if none could be asked.
    """
    pages = agent_pages(objects(api, paths.PODS, label_selector=AGENTS))
    known = read_cluster(api, namespace)
    sums, until = _Sums(end, known), time.monotonic() + ALL_SECONDS
    with ThreadPoolExecutor(AT_ONCE) as pool:
        faults = list(pool.map(lambda page: _read(api, page, sums, until, namespace), pages))
    silent = [(page, fault) for page, fault in zip(pages, faults, strict=True) if fault is not None]
    if len(silent) == len(pages):
        why = f"the first: {silent[0][1].message[:300]}" if silent else "no pod has their labels"
        raise ApiError(
            "agents", f"none of {len(pages)} agents could be asked: {why}",
            hint="you need the verb get on pods/proxy; if metrics.readers is authorized, use --prometheus",
        )  # fmt: skip
    return sums.counted((*_notes(silent, len(pages)), *known.notes))


def agent_pages(pods: Iterable[Wire]) -> list[AgentPage]:
    """Return the addresses of the metrics of running agents."""
    found = []
    for pod in pods:
        container: Wire = next(iter(pod.get("spec", {}).get("containers") or ()), {})
        ports = {one.get("name"): one.get("containerPort") for one in container.get("ports") or ()}
        if pod.get("status", {}).get("phase") != "Running" or not isinstance(ports.get("metrics"), int):
            continue
        names = {one.get("name") for one in container.get("env") or ()}
        scheme = "https:" if "METRICS_CERTIFICATE" in names else ""
        name = pod["metadata"]["name"]
        target = quote(f"{scheme}{name}:{ports['metrics']}", safe=":")
        where = f"{paths.within(paths.PODS, pod['metadata']['namespace'])}/{target}"
        found.append(AgentPage(name, pod["spec"].get("nodeName", ""), f"{where}/proxy/metrics"))
    return found


def node_kinds(nodes: Iterable[Wire]) -> dict[str, NodeKind]:
    """Return the kind by which each node is priced, from its labels."""
    found = {}
    for node in nodes:
        labels = {
            str(name).lower(): str(value).lower() for name, value in (node["metadata"].get("labels") or {}).items()
        }
        kind = next((labels[name] for name in INSTANCE_TYPE if name in labels), "")
        is_spot = any(labels.get(name) == value for name, value in SPOT.items())
        found[node["metadata"]["name"]] = NodeKind(kind, "spot" if is_spot else "on-demand")
    return found


class _Sums:
    """The sum of the pages that were read. Any thread may add one."""

    def __init__(self, end: datetime, known: KnownCluster) -> None:
        self._end, self._known, self._mutex = end, known, threading.Lock()
        self._rows = 0
        self._cuts: list[str] = []
        self._claims: list[ClaimUsage] = []
        self._totals: dict[tuple[str, str, str, str], NamespaceUsage] = {}
        self._unclaimed: list[UnclaimedTime] = []
        self._parts: dict[tuple[str, str], float] = {}

    def add(self, page: PageSums, where: str, node: str) -> None:
        """Add a page, cut to what can be true of its node. Raises: ApiError if there is no room for its rows."""
        page, cuts = NodeBounds(self._known, node, self._end.timestamp()).cut(page)
        with self._mutex:
            count, room = sum(map(len, page)), min(PAGE_ROWS, ALL_ROWS - self._rows)
            if count > room:
                raise ApiError("metrics", f"{where}: {count} claims and totals, and there is room for {room}")
            self._rows += count
            self._cuts += [f"{node}: {text}" for text in cuts]
            self._claims += page.claims
            self._unclaimed += page.unclaimed
            self._parts.update(page.parts)
            for one in page.totals:
                key = one.namespace, one.device_class, one.model, one.profile
                self._totals[key] = one.plus(self._totals[key]) if key in self._totals else one

    def counted(self, notes: tuple[str, ...]) -> UsageCounts:
        """Return the sum of all pages."""
        return UsageCounts(
            source="the agents, since they began to count",
            begin=None,
            end=self._end,
            claims=tuple(sorted(self._claims, key=lambda one: (one.namespace, one.name, one.uid, one.pool))),
            totals=tuple(found for _, found in sorted(self._totals.items())),
            unclaimed=tuple(sorted(self._unclaimed, key=lambda one: (one.pool, one.model))),
            parts=self._parts,
            notes=(*notes, *notes_of_cuts(self._cuts)),
        )


def _read(api: KubeApi, page: AgentPage, sums: _Sums, until: float, namespace: str) -> DriverError | None:
    """Read a page and add it to the sums; return the error if that fails, else None."""
    where, left = f"agent {page.pod}", until - time.monotonic()
    try:
        if left <= 0:
            text = f"{where} was not asked, because {ALL_SECONDS:.0f} s were over; use --prometheus instead"
            raise ApiError("timeout", text)
        answer = api.request("GET", page.path, timeout_s=min(PAGE_SECONDS, left), parse=_text)
        samples = list(samples_of_page(answer["text"], _PREFIX, where))
        _check_pools(samples, page)
        sums.add(_counted(samples, namespace), where, page.node)
    except DriverError as error:
        return error
    return None


def _check_pools(samples: list[Sample], page: AgentPage) -> None:
    """Refuse a page about another node than the one on which its pod runs according to the API server.

    Raises: ApiError.
    """
    pools = {one.labels.get("dra_pool_name", "") for one in samples} - {""}
    for pool in sorted(pools):
        if pool.partition("/")[0] != page.node:
            why = f"it names the pool {pool[:80]!r}, which is not one of its node {page.node!r}"
            raise ApiError("metrics", f"agent {page.pod}: its page is refused: {why}")


def _text(body: bytes) -> Wire:
    if len(body) > PAGE_BYTES:
        raise ValueError(f"the page has {len(body)} bytes; at most {PAGE_BYTES} are allowed")
    return {"text": body.decode()}


def _notes(silent: list[tuple[AgentPage, DriverError]], count: int) -> tuple[str, ...]:
    if not silent:
        return ()
    names = ", ".join(page.node or page.pod for page, _ in silent[:MAX_NAMED])
    more = f" and {len(silent) - MAX_NAMED} more" if len(silent) > MAX_NAMED else ""
    return (f"{len(silent)} of {count} agents could not be asked: {names}{more} ({silent[0][1].message[:200]})",)


def _counted(samples: list[Sample], namespace: str) -> PageSums:
    """Return the sums of the samples of one page."""
    by_name = _by_name(samples, namespace)

    def rows(name: str) -> list[Sample]:
        return by_name.get(name, [])

    kinds = ("allocated", "busy", "measured")
    unclaimed = (
        UnclaimedTime(one.labels.get("dra_pool_name", ""), one.labels.get("model", ""), one.value)
        for one in ([] if namespace else rows("dra_unclaimed_seconds_total"))
    )
    parts = {(one.labels.get("model", ""), one.labels.get("profile", "")): one.value for one in rows("dra_gpu_part")}
    return PageSums(
        claims=claims_of(
            ClaimSeries(
                hours={kind: rows(f"dra_claim_{kind}_seconds_total") for kind in kinds},
                devices=_devices(rows("dra_claim_device_info")),
                pods=rows("dra_claim_device_info"),
                memory=rows("dra_claim_memory_used_max_bytes"),
                activity=rows("dra_claim_sm_active_bucket"),
            )
        ),
        totals=totals_of({kind: rows(f"dra_{kind}_seconds_total") for kind in kinds}),
        unclaimed=tuple(one for one in unclaimed if one.seconds > 0),
        parts=parts,
    )


def _by_name(samples: list[Sample], namespace: str) -> dict[str, list[Sample]]:
    """Return the samples of one namespace, or of all if it is "", by name, with those that belong to none."""
    by_name: dict[str, list[Sample]] = {}
    for one in samples:
        is_asked = not namespace or namespace_of(one) == namespace
        if is_asked or one.name in {"dra_gpu_part", "dra_unclaimed_seconds_total"}:
            by_name.setdefault(one.name, []).append(one)
    return by_name


def _devices(rows: list[Sample]) -> list[Sample]:
    found: dict[str, set[tuple[str, ...]]] = {}
    for one in rows:
        device = tuple(one.labels.get(name, "") for name in ("dra_pool_name", "dra_device_name", "dra_share_id"))
        found.setdefault(one.labels.get("dra_claim_uid", ""), set()).add(device)
    return [Sample("devices", {"dra_claim_uid": uid}, float(len(devices))) for uid, devices in found.items()]
