"""What if: the scheduler's timeline with and without a change. It is only simulated.

In: a board and a `FleetChange`: objects that arrive, nodes that are added, removed or partitioned in another way. Out:
the document of both timelines. Running pods are known only by their claims, so whether they could run on another node
is not considered.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dra_driver.allocation.simulation import TimelineEvent
from dra_driver.base.errors import InputError
from dra_driver.base.wire import Wire
from dra_driver.hardware.simulated import profile_names
from dra_driver.tools.console.board import Board, copies
from dra_driver.tools.explain.advice import is_change, repartitioned_slices
from dra_driver.tools.explain.scenario import Scenario, ScenarioRun, arrivals, event_of, moment_document
from dra_driver.tools.world.access import DocumentKind, OutputDocument
from dra_driver.tools.world.profiles import read_count
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
