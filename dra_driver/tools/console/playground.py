"""What if: the scheduler's timeline with and without a change. It is only simulated.

In: a board and a `FleetChange`: objects that arrive, nodes that are added, removed or partitioned in another way. Out:
the document of both timelines. Running pods are known only by their claims, so whether they could run on another node
is not considered.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from dra_driver.allocation.pools import DeviceId
from dra_driver.allocation.simulation import TimelineEvent
from dra_driver.base.errors import CEL_COST, InputError
from dra_driver.base.versions import VERSIONS
from dra_driver.base.wire import Wire
from dra_driver.hardware.simulated import profile_names
from dra_driver.selectors.check.declarations import SELECTOR_GATES, declare
from dra_driver.selectors.completion import Completions
from dra_driver.selectors.engine import Environment, SelectorCompileError
from dra_driver.tools.cel.linting import explanations_document, finding_document, lint_queries
from dra_driver.tools.cel.verdicts import (
    ABORT,
    MATCH,
    NO_MATCH,
    QueryVerdicts,
    compiled_document,
    inputs_document,
    judge,
    miss_document,
    misses,
    rows_of,
    views_of,
)
from dra_driver.tools.console.board import Board, copies
from dra_driver.tools.explain.advice import is_change, repartitioned_slices
from dra_driver.tools.explain.scenario import Scenario, ScenarioRun, arrivals, event_of, moment_document
from dra_driver.tools.world.access import DocumentKind, OutputDocument, plain
from dra_driver.tools.world.fleet import Fleet, FleetDevice, fleet_of_slices
from dra_driver.tools.world.profiles import read_count
from dra_driver.tools.world.queries import Query, SelectorInputs, WrittenSelector
from dra_driver.tools.world.workloads import world_of_files
from dra_driver.tools.world.world import World, add_profiles

MAX_TEXT = 1 << 20  # characters of pasted objects
_MAX_EVENTS, _MAX_NODES = 200, 20_000
_PASTED = "pasted.yaml"


@dataclass(frozen=True, slots=True)
class FleetChange:
    """A change to simulate: of the fleet, or of the pods and claims that arrive.

    `objects` are pasted manifests. `picked` are the places of pods and claims of which copies arrive (`copies`).
    `added` are simulated nodes, as PROFILE or PROFILE=COUNT. `repartitioned` are pairs of a node and either the profile
    of the machine that replaces it, or the way in which its GPUs are then partitioned or shared (`repartition`).
    """

    objects: str = ""
    picked: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    repartitioned: tuple[tuple[str, str], ...] = ()

    def check(self) -> None:
        """Check that profiles are shipped ones, because a page must not name files. Raises: InputError."""
        for given in (*self.added, *(become for _, become in self.repartitioned if not is_change(become))):
            name, count = read_count(given)
            if name not in profile_names() or count > _MAX_NODES:
                hint = f"shipped profiles: {', '.join(profile_names())}; at most {_MAX_NODES:,} nodes"
                raise InputError("profile", f"{given[:80]!r} is neither a profile nor a geometry", hint=hint)
        if len(self.drained) + len(self.lost) + len(self.repartitioned) > _MAX_EVENTS:
            raise InputError("too-large", f"at most {_MAX_EVENTS} changes can be simulated")


def what_if(board: Board, change: FleetChange) -> OutputDocument:
    """Return the document of both timelines. Raises: InputError for objects or names that can't be used."""
    change.check()
    before = list(_moments(board, FleetChange(change.objects, change.picked), ()))
    events = [TimelineEvent("drain", node) for node in change.drained]
    events += [TimelineEvent("lose", device) for device in change.lost]
    after = list(_moments(board, change, events))
    content = {"now": before, "then": after, "kubernetes": board.rules.kubernetes}
    return OutputDocument(DocumentKind.WHAT_IF, content)


def _moments(board: Board, change: FleetChange, events: Sequence[TimelineEvent]) -> Iterator[Wire]:
    world = board.snapshot()
    _paste(world, change.objects)
    for kind, wire in copies(board, change.picked):
        world.objects[kind].append(wire)
    add_profiles(world, change.added)
    world.objects["Pod"] += _running(board)
    world.complete()
    changed = [*events, *(_become(board, world, node, become) for node, become in change.repartitioned)]
    known = {node["metadata"]["name"] for node in world.of("Node")}
    for one in changed:
        if one.target.partition("/")[0] not in known:
            raise InputError("missing", f"{one.kind}: there is no node {one.target.partition('/')[0][:253]}")
    run = ScenarioRun(Scenario(world, (*changed, arrivals(world)), change.added), board.rules)
    for moment in run.moments(run.beginning()):
        yield moment_document(moment)
    world.refuse_unknown_objects()


def _become(board: Board, world: World, node: str, become: str) -> TimelineEvent:
    """Return the event by which a node is replaced, or partitioned or shared in another way.

    Raises: InputError.
    """
    if not is_change(become):
        return event_of({"replace": {"node": node, "fleet": become}}, 1, world, Path())
    slices = [one for one in world.of("ResourceSlice") if one["spec"].get("nodeName") == node]
    made = repartitioned_slices(node, slices, become, board.rules)
    return TimelineEvent("replace", node, f"the GPUs of {node} become {become}", slices=made)


def _paste(world: World, text: str) -> None:
    """Add pasted objects to a world, read in the same way as a file. Raises: InputError."""
    if len(text) > MAX_TEXT:
        raise InputError("too-large", f"at most {MAX_TEXT >> 20} Mi characters can be pasted")
    if not text.strip():
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / _PASTED
        path.write_text(text)
        try:
            coming = world_of_files([str(path)])
        except InputError as fault:
            fault.message = fault.message.replace(f"{folder}/", "")
            raise
    for kind, objects in coming.objects.items():
        world.objects[kind] += objects
    world.templates += coming.templates
    world.unknown_objects += coming.unknown_objects


def _running(board: Board) -> list[Wire]:
    """Return the pods that allocated claims are reserved for, except those that are on the board."""
    nodes = {one["spec"]["pool"]["name"]: one["spec"].get("nodeName") for one in board.of("ResourceSlice")}
    found: dict[tuple[str, str], Wire] = {}
    for claim in board.of("ResourceClaim"):
        status, namespace = claim.get("status") or {}, claim["metadata"].get("namespace") or "default"
        results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
        node = next((nodes[one["pool"]] for one in results if nodes.get(one["pool"])), None)
        for user in status.get("reservedFor") or () if node else ():
            key = namespace, str(user.get("name"))
            if board.find("Pod", *key) is None:
                entries = found.setdefault(key, _bound(*key, str(node)))["spec"]["resourceClaims"]
                entries.append({"name": f"claim-{len(entries)}", "resourceClaimName": claim["metadata"]["name"]})
    return list(found.values())


def _bound(namespace: str, name: str, node: str) -> Wire:
    metadata = {"namespace": namespace, "name": name}
    spec: Wire = {"nodeName": node, "resourceClaims": []}
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Running"}}


# The map's filter by a selector: which devices it accepts, on all nodes or on as many as there is time for.

MAX_SINGLE = 4_000  # the largest fleet, in devices, in which every device is evaluated
SECONDS = 0.25  # the time in which as many nodes as possible are evaluated in a larger fleet
_NODES = 10  # nodes that are evaluated before the clock is read again
Accepted = Mapping[str, frozenset[DeviceId]]  # the devices that match, by node


@dataclass(frozen=True, slots=True)
class SelectorMatches:
    """The devices that a selector accepts. If it was not evaluated on all nodes, `note` says on how many it was."""

    accepted: Accepted
    note: str = ""


def distinguishes_many_nodes(given: SelectorInputs) -> bool:
    """Return whether a selector reads values that differ between nodes, in a fleet with too many devices for that."""
    fleet, expression = given.fleet, given.queries[0].selectors[0].expression
    if fleet.size <= MAX_SINGLE or not fleet.repeats:
        return False
    try:
        reads = given.engine().compile(expression, environment=given.environment).read_set.reads
    except SelectorCompileError:
        return False
    return any(shape.varies_in(reads) for one in fleet.repeats for shape in one.shapes)


def selector_matches(board: Board, expression: str, names: Sequence[str], seconds: float = SECONDS) -> SelectorMatches:
    """Return the devices that a selector accepts on these nodes. Raises: InputError for one that does not compile."""
    given = _given(board, expression, board.fleet())
    if not distinguishes_many_nodes(given):
        return SelectorMatches(_accepted(given))
    until, by_node = time.monotonic() + seconds, board.slices_by_node()
    found: dict[str, frozenset[DeviceId]] = {}
    for at in range(0, len(names), _NODES):
        if time.monotonic() > until:
            note = f"it reads values that differ between nodes: judged on the first {at:,} of {len(names):,} nodes"
            return SelectorMatches(found, note)
        slices = [(one["metadata"]["name"], one) for name in names[at : at + _NODES] for one in by_node[name]]
        found.update(_accepted(_given(board, expression, fleet_of_slices(slices, board.source).unfolded())))
    return SelectorMatches(found)


def _given(board: Board, expression: str, fleet: Fleet) -> SelectorInputs:
    query = Query("filter", "filter", [WrittenSelector("-e", expression)])
    return SelectorInputs(fleet, [query], board.rules.kubernetes, {}, "stored")


def _accepted(given: SelectorInputs) -> Accepted:
    [judged] = judge(given.queries, given.fleet, given.engine(), "stored")
    if (error := judged.compiled[0].error) is not None:
        raise InputError("selector", f"the filter's selector does not compile: {error.text}")
    found = {
        node: frozenset((one.driver, one.pool, one.name) for one in held[MATCH])
        for node, held in judged.by_node().items()
        if held[MATCH]
    }
    return found | {
        name: frozenset((driver, name, device) for driver, _, device in found[node])  # equal pools have nodes' names
        for node, names in judged.like.items()
        if node in found
        for name in names
    }


# The playground: one selector is evaluated on every device of the board.

MAX_CHARACTERS = 10_240  # Source: Kubernetes API resource/v1 CELSelectorExpressionMaxLength
_MAX_ROWS = 60  # kinds of nodes that are shown
_MAX_DEVICES = 64  # devices of each verdict that are shown of a node
_MAX_VIEWS = 2_000  # devices whose names and values are offered as completions


@dataclass(frozen=True, slots=True)
class Trial:
    """An expression, and the version, gates and environment to evaluate it with; "" is the version of the board."""

    expression: str
    kubernetes: str = ""
    gates: tuple[tuple[str, bool], ...] = ()
    environment: Environment = "new"

    def given(self, board: Board, fleet: Fleet) -> SelectorInputs:
        """Return the inputs of the evaluation. Raises: InputError for an unknown version or gate, or a long text."""
        kubernetes = self.kubernetes or board.rules.kubernetes
        if kubernetes not in VERSIONS:
            raise InputError("kubernetes", f"Kubernetes {kubernetes[:20]!r} is not known", hint=", ".join(VERSIONS))
        if len(self.expression) > 2 * MAX_CHARACTERS:
            raise InputError("too-large", f"the expression is longer than {2 * MAX_CHARACTERS:,} characters")
        if unknown_objects := [name for name, _ in self.gates if name not in SELECTOR_GATES]:
            raise InputError("gate", f"no selector depends on gate {unknown_objects[0][:80]!r}")
        query = Query("selector", "selector", [WrittenSelector("-e", self.expression)])
        return SelectorInputs(fleet, [query], kubernetes, dict(self.gates), self.environment)


def try_selector(board: Board, trial: Trial) -> OutputDocument:
    """Return the verdicts on all devices, and the findings about the expression. Raises: InputError."""
    given = _shortened(trial.given(board, board.fleet()))
    [judged] = judge(given.queries, given.fleet, given.engine(), given.environment)
    one = judged.compiled[0]
    remarks = next(lint_queries([judged], given, frozenset()), None)
    position = one.error.position if one.error else None
    rows = rows_of(judged)
    content = {
        **inputs_document(given),
        "selector": compiled_document(one, judged, given),
        "position": {"line": position[0], "column": position[1]} if position else None,
        "costLimit": CEL_COST,
        "counts": {kind: judged.count(kind) for kind in (MATCH, NO_MATCH, ABORT)},
        "rows": [_row(judged, names, held) for names, held in rows[:_MAX_ROWS]],
        "moreRows": max(0, len(rows) - _MAX_ROWS),
        "nearestMisses": [] if judged.count(MATCH) else [miss_document(miss) for miss in misses(judged)],
        "findings": [
            finding_document(finding, one.written, given) for finding in (remarks.findings if remarks else ())
        ],
        "better": remarks.better if remarks else None,
    }
    return OutputDocument(DocumentKind.SELECTOR_PLAY, content)


def _shortened(given: SelectorInputs) -> SelectorInputs:
    """Return inputs that can be evaluated in time, with one node of each kind if all nodes would take too long."""
    fleet = given.fleet
    if not distinguishes_many_nodes(given):
        return given
    few = Fleet(fleet.devices, fleet.sources, fleet.notes)
    note = f"it reads values that differ between nodes: judged on {few.node_count:,} of {fleet.node_count:,} nodes"
    return replace(given, fleet=replace(few, notes=(*few.notes, note)))


def _row(judged: QueryVerdicts, names: Sequence[str], held: dict[str, list[FleetDevice]]) -> Wire:
    """Return the verdicts on the devices of a node, and how many other nodes have the same verdicts."""
    errors = judged.errors()

    def named(device: FleetDevice) -> Wire:
        error, _ = errors.get(id(device), (None, None))
        return {"driver": device.driver, "pool": device.pool, "device": device.name, "error": error}

    return {
        "node": names[0],
        "like": len(names) - 1,
        "counts": {kind: len(held[kind]) for kind in (MATCH, NO_MATCH, ABORT)},
        **{kind: [named(one) for one in held[kind][:_MAX_DEVICES]] for kind in (MATCH, NO_MATCH, ABORT)},
    }


def explain_on(board: Board, trial: Trial, node: str, device: DeviceId) -> OutputDocument:
    """Return why one device matches or not, with the value of each part of the expression. Raises: InputError."""
    driver, pool, name = device
    found = [
        FleetDevice(node, driver, pool, wire)
        for one in board.slices_by_node().get(node, ())
        if (one["spec"]["driver"], one["spec"]["pool"]["name"]) == (driver, pool)
        for wire in one["spec"].get("devices") or ()
        if wire["name"] == name
    ]
    if not found:
        raise InputError("no-device", f"node {node} publishes no device {name}")
    fleet = Fleet(tuple(found[:1]), (board.source,))
    given = trial.given(board, fleet)
    judged = judge(given.queries, fleet, given.engine(), given.environment)
    return explanations_document(judged, given)


def completions(board: Board, trial: Trial, before: str) -> list[Wire]:
    """Return what may follow the text before the cursor. Raises: InputError."""
    fleet = board.fleet()
    some = Fleet(tuple(islice(fleet.devices, _MAX_VIEWS)))
    given = trial.given(board, some)
    declared = declare(given.kubernetes, given.gates, given.environment)
    found = Completions(views_of(some), declared).complete(before[-2_000:])
    return [plain(one) for one in found[:200]]
