"""First fit: which devices one claim gets on one node, taking the first that fit.

In: a claim, the node's slices, the classes, and who holds what. Out: an allocation with a reason for each choice, or a
refusal that says why. Pure. Not covered: tolerations (a tainted device is left out), devices that several claims share,
node selectors of slices. Source: Kubernetes dynamic-resource-allocation structured allocator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dra_driver.embedded.budget import Budget
from dra_driver.model import limits
from dra_driver.model.wire import ClaimWire, ClassWire, DeviceWire, SliceWire, Wire
from dra_driver.selectors import Selector, SelectorCompileError, SelectorRuntimeError

DeviceId = tuple[str, str, str]  # driver, pool, device
Compile = Callable[[str], Selector]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One device that the node can reach."""

    id: DeviceId
    device: DeviceWire
    is_node_local: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """One device of an allocation and why it was taken."""

    request: str
    id: DeviceId
    is_admin: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a claim: `allocation` as it is written, or None and a `refusal`; `aborts`: a selector failed."""

    allocation: Wire | None
    choices: tuple[Choice, ...] = ()
    refusal: str = ""
    aborts: bool = False


@dataclass(frozen=True, slots=True)
class _Want:
    """One request, or one of its alternatives."""

    name: str  # as results name it: "gpu" or "gpu/big"
    choice: Wire
    fitting: tuple[Candidate, ...]  # that class and request selectors accept, in order of preference
    free: tuple[Candidate, ...]
    counts: str  # "8 devices here, 6 of class x, 2 held by others"

    @property
    def is_admin(self) -> bool:
        return bool(self.choice.get("adminAccess"))

    @property
    def count(self) -> int:
        return len(self.fitting) if self.choice["allocationMode"] == "All" else int(self.choice["count"])


@dataclass(slots=True)
class _Search:
    """The state of one depth-first search."""

    ranks: Sequence[Sequence[_Want]]
    constraints: Sequence[Wire]
    budget: Budget
    taken: list[tuple[_Want, Candidate]] = field(default_factory=list)
    blocked_by: str = ""
    is_exhausted: bool = False


def node_devices(slices: Sequence[SliceWire], node: str) -> list[Candidate]:
    """Give the devices that a node can reach: newest generation of each complete pool, in slice and device order."""
    pools: dict[tuple[str, str], list[SliceWire]] = {}
    for one in slices:
        spec = one["spec"]
        if spec.get("nodeName") == node or spec.get("allNodes"):
            pools.setdefault((spec["driver"], spec["pool"]["name"]), []).append(one)
    found = []
    for (driver, pool), members in sorted(pools.items()):
        newest = max(s["spec"]["pool"]["generation"] for s in members)
        current = [s for s in members if s["spec"]["pool"]["generation"] == newest]
        if len(current) != current[0]["spec"]["pool"]["resourceSliceCount"]:
            continue
        for one in sorted(current, key=lambda s: str(s["metadata"]["name"])):
            local = "nodeName" in one["spec"]
            found += [
                Candidate((driver, pool, device["name"]), device, local) for device in one["spec"].get("devices") or []
            ]
    return found


def first_fit(
    claim: ClaimWire,
    *,
    slices: Sequence[SliceWire],
    classes: Mapping[str, ClassWire],
    in_use: Mapping[DeviceId, str],
    node: str,
    compile_selector: Compile,
) -> Outcome:
    """Choose devices for a claim on a node. `in_use` gives for every held device the claim that holds it."""
    spec = claim["spec"].get("devices") or {}
    candidates = node_devices(slices, node)
    for name in _class_names(spec):
        if name not in classes:
            return Outcome(None, refusal=f"device class {name} does not exist")
    try:
        ranks = [
            list(_wants(request, candidates, classes, in_use, compile_selector))
            for request in spec.get("requests") or []
        ]
    except (SelectorRuntimeError, SelectorCompileError) as fault:
        return Outcome(None, refusal=fault.text, aborts=True)
    budget = Budget(slices, node)
    for candidate in candidates:
        if candidate.id in in_use:
            budget.take(*candidate.id[:2], candidate.device)
    search = _Search(ranks, spec.get("constraints") or [], budget)
    if not _place(search, 0):
        return Outcome(None, refusal=_why_not(search))
    if len(search.taken) > limits.ALLOCATION_RESULTS:
        return Outcome(
            None, refusal=f"{len(search.taken)} devices, but a claim holds {limits.ALLOCATION_RESULTS} at most"
        )
    choices = tuple(Choice(want.name, one.id, want.is_admin, _reason(want, search)) for want, one in search.taken)
    return Outcome(_allocation(claim, search.taken, classes, node), choices)


def _choices(request: Wire) -> list[tuple[str, Wire]]:
    """Give the ways to ask in one request, each with the name that results carry."""
    choices = [(request["name"], request["exactly"])] if "exactly" in request else []
    return choices + [(f"{request['name']}/{sub['name']}", sub) for sub in request.get("firstAvailable") or []]


def _class_names(spec: Wire) -> list[str]:
    requests = spec.get("requests") or []
    return [choice["deviceClassName"] for request in requests for _, choice in _choices(request)]


def _wants(
    request: Wire,
    candidates: Sequence[Candidate],
    classes: Mapping[str, ClassWire],
    in_use: Mapping[DeviceId, str],
    compile_selector: Compile,
) -> Iterator[_Want]:
    """Give the ways to meet a request, best first. Raises: SelectorRuntimeError."""
    for name, choice in _choices(request):
        class_name = choice["deviceClassName"]
        of_class = _matching(candidates, classes[class_name]["spec"], compile_selector, f"class {class_name}")
        fitting = _matching(of_class, choice, compile_selector, f"request {name}")
        usable = [c for c in fitting if not _is_tainted(c.device)]
        free = usable if choice.get("adminAccess") else [c for c in usable if c.id not in in_use]
        counts = f"{len(candidates)} devices here, {len(of_class)} of class {class_name}"
        if choice.get("selectors"):
            counts += f", {len(fitting)} {'matches' if len(fitting) == 1 else 'match'} the selectors"
        if tainted := len(fitting) - len(usable):
            counts += f", {tainted} tainted"
        if held := len(usable) - len(free):
            counts += f", {held} held by other claims"
        yield _Want(name, choice, tuple(fitting), tuple(free), counts)


def _matching(candidates: Sequence[Candidate], spec: Wire, compile_selector: Compile, owner: str) -> list[Candidate]:
    """Give the candidates that all selectors accept. Raises: SelectorRuntimeError naming selector and device."""
    kept = list(candidates)
    for i, selector in enumerate(spec.get("selectors") or []):
        program = compile_selector(selector["cel"]["expression"])
        accepted = []
        for candidate in kept:
            try:
                if program.matches(candidate.device, candidate.id[0]):
                    accepted.append(candidate)
            except SelectorRuntimeError as fault:
                device = "/".join(candidate.id)
                raise SelectorRuntimeError(f"{owner}: selector #{i} failed on device {device}: {fault.text}") from fault
        kept = accepted
    return kept


def _is_tainted(device: DeviceWire) -> bool:
    return any(taint["effect"] in ("NoSchedule", "NoExecute") for taint in device.get("taints") or [])


def _place(search: _Search, depth: int) -> bool:
    """Place the requests from `depth` on; on failure `search.taken` is as it was."""
    if depth == len(search.ranks):
        return True
    return any(_fill(search, depth, want, 0) for want in search.ranks[depth])


def _fill(search: _Search, depth: int, want: _Want, start: int) -> bool:
    """Take devices for one request, from number `start` on, then place the other requests; step back if that fails."""
    missing = want.count - sum(other is want for other, _ in search.taken)
    is_all = want.choice["allocationMode"] == "All"
    if want.count == 0 or (is_all and len(want.free) < len(want.fitting)):
        return False
    if missing == 0:
        return _place(search, depth + 1)
    for i in range(start, len(want.free) - missing + 1):
        candidate = want.free[i]
        if any(one.id == candidate.id for _, one in search.taken):
            continue
        if blocking := _broken_constraint(search, want, candidate):
            search.blocked_by = blocking
            continue
        driver, pool, _ = candidate.id
        if not want.is_admin and not search.budget.fits(driver, pool, candidate.device):
            search.is_exhausted = True
            continue
        search.taken.append((want, candidate))
        if not want.is_admin:
            search.budget.take(driver, pool, candidate.device)
        if _fill(search, depth, want, i + 1):
            return True
        search.taken.pop()
        if not want.is_admin:
            search.budget.give_back(driver, pool, candidate.device)
    return False


def _broken_constraint(search: _Search, want: _Want, candidate: Candidate) -> str:
    """Give the attribute of the first constraint that this device would break; "" for none."""
    for constraint in search.constraints:
        if not _covers(constraint, want.name):
            continue
        name = str(constraint.get("matchAttribute") or constraint.get("distinctAttribute"))
        value = attribute(candidate, name)
        if value is None:
            return name
        others = [attribute(one, name) for other, one in search.taken if _covers(constraint, other.name)]
        if "matchAttribute" in constraint and any(other != value for other in others):
            return name
        if "distinctAttribute" in constraint and value in others:
            return name
    return ""


def _covers(constraint: Wire, name: str) -> bool:
    requests = constraint.get("requests") or []
    return not requests or name in requests or name.partition("/")[0] in requests


def attribute(candidate: Candidate, name: str) -> Wire | None:
    """Look an attribute up by its full name: as it stands, else without its domain if that is the driver's."""
    attributes: Wire = candidate.device.get("attributes") or {}
    domain, _, short = name.rpartition("/")
    found: Wire | None = attributes.get(name)
    return attributes.get(short) if found is None and domain == candidate.id[0] else found


def _reason(want: _Want, search: _Search) -> str:
    alternatives = next(rank for rank in search.ranks if want in rank)
    rank = alternatives.index(want)
    reason = "all that match" if want.choice["allocationMode"] == "All" else "first that fits"
    for constraint in search.constraints:
        if _covers(constraint, want.name):
            how = "equal" if "matchAttribute" in constraint else "different"
            reason += f" with {how} {constraint.get('matchAttribute') or constraint.get('distinctAttribute')}"
    if want.is_admin:
        reason += ", admin access: nobody is asked who holds it"
    if len(alternatives) > 1:
        reason += f", choice {rank + 1} of {len(alternatives)}"
    lines = [f"{reason} ({want.counts})"]
    lines += [f"not {before.name} ({before.counts})" for before in alternatives[:rank]]
    return "; ".join(lines)


def _why_not(search: _Search) -> str:
    """Say why nothing fits: the requests that fail alone, else the constraint, else the competition between them."""
    lines = []
    for alternatives in search.ranks:
        if all(len(want.free) < max(want.count, 1) for want in alternatives):
            for want in alternatives:
                mode = "all" if want.choice["allocationMode"] == "All" else str(want.count)
                lines.append(f"request {want.name} wants {mode}: {want.counts}")
    if lines:
        return "; ".join(lines)
    if search.blocked_by:
        return f"no set of free devices agrees on {search.blocked_by}"
    if search.is_exhausted:
        return "what fits overlaps with devices that are held: too little is left of the counters they share"
    return "each request fits alone, but not all together"


def _allocation(
    claim: ClaimWire, taken: Sequence[tuple[_Want, Candidate]], classes: Mapping[str, ClassWire], node: str
) -> Wire:
    """Give the allocation as the scheduler writes it."""
    results: list[Wire] = []
    for want, candidate in taken:
        driver, pool, device = candidate.id
        result: Wire = {"request": want.name, "driver": driver, "pool": pool, "device": device}
        if want.is_admin:
            result["adminAccess"] = True
        results.append(result)
    devices: Wire = {"results": results}
    if config := _configs(claim, taken, classes):
        devices["config"] = config
    allocation: Wire = {"devices": devices}
    if any(candidate.is_node_local for _, candidate in taken):
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        allocation["nodeSelector"] = {"nodeSelectorTerms": [term]}
    return allocation


def _configs(
    claim: ClaimWire, taken: Sequence[tuple[_Want, Candidate]], classes: Mapping[str, ClassWire]
) -> list[Wire]:
    """Give class configs (each class once, with the requests that use it), then the claim's own."""
    users: dict[str, list[str]] = {}
    for want, _ in taken:
        names = users.setdefault(want.choice["deviceClassName"], [])
        if want.name not in names:
            names.append(want.name)
    chosen = {want.name for want, _ in taken} | {want.name.partition("/")[0] for want, _ in taken}
    own = (claim["spec"].get("devices") or {}).get("config") or []
    return [
        {"source": "FromClass", "requests": names, **config}
        for class_name, names in users.items()
        for config in classes[class_name]["spec"].get("config") or []
    ] + [
        {"source": "FromClaim", **config}
        for config in own
        if not config.get("requests") or chosen & set(config["requests"])
    ]
