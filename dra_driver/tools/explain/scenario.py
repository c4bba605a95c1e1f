"""Scenarios: the files that `simulate` runs.

In: a YAML file. Out: its fleet, objects and events. The format:

    kubernetes: "1.36"                     # optional, as are gates: {NAME: true}
    fleet: {dgx-h100: 2}                   # simulated nodes by profile
    files: [slices.yaml, classes.yaml]     # or objects as kubectl writes them
    timeline:
    - arrive: {name: train, count: 2, requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}
    - arrive: {file: pod.yaml}             # the pods of a file, or its claims where it has no pod
    - leave: train-1
    - drain: dgx-h100-1                    # and undrain
    - lose: dgx-h100-1/gpu-0000-1b-00-0    # a device, and restore
    - replace: {node: dgx-h100-2, fleet: mig-h100}   # other devices on a node: MIG geometry
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dra_driver.allocation.moves import Rearrangement
from dra_driver.allocation.simulation import KINDS, EventOutcome, Job, Timeline, TimelineEvent, jobs_of_claims
from dra_driver.base.errors import InputError
from dra_driver.base.wire import Wire
from dra_driver.tools.world.access import (
    ClusterAccess,
    DocumentKind,
    NoProgress,
    OutputDocument,
    ProgressLines,
    counted,
    plain,
)
from dra_driver.tools.world.fields import nearest, plural
from dra_driver.tools.world.pod_status import has_ended, is_bound, is_terminating
from dra_driver.tools.world.shapes import ShapeChecker
from dra_driver.tools.world.workloads import (
    allocation_of,
    default_requests,
    is_offered,
    place_on_cluster,
    pod_claims,
    pod_name,
    resource_notes,
    unserved,
    world_of_cluster,
    world_of_files,
)
from dra_driver.tools.world.world import KNOWN_GATES, AppliedRules, World, add_profiles, apply_rules

MAX_JOBS = 100_000
_Kind = TypeVar("_Kind", list[Any], dict[Any, Any])
_KEYS = {"kubernetes", "gates", "fleet", "files", "timeline"}


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario file."""

    world: World
    events: tuple[TimelineEvent, ...]
    profiles: tuple[str, ...] = ()


def read_scenario(
    path: str, kubernetes: str | None, given: Mapping[str, bool], mig: str
) -> tuple[Scenario, AppliedRules]:
    """Read a scenario and its rules; `kubernetes` and the gates `given` override those of the file.

    Raises: InputError.
    """
    from dra_driver.tools.world.documents import load_text, read_text

    wire = (load_text(read_text(path), path) or [None])[0]
    if not isinstance(wire, dict):
        raise InputError("scenario", f"{path} is not a mapping", hint=f"its keys are {', '.join(sorted(_KEYS))}")
    unknown = sorted(map(str, set(wire) - _KEYS))
    if unknown:
        raise InputError("scenario", f"{path}: {unknown[0]} is not a key of scenarios", hint=", ".join(sorted(_KEYS)))
    files, fleet = _of(wire, "files", list, path), _of(wire, "fleet", dict, path)
    timeline, gates = _of(wire, "timeline", list, path), _gates_of(wire, path)
    folder = Path(path).parent
    world = world_of_files([str(folder / name) for name in map(str, files)])
    version = kubernetes or str(wire.get("kubernetes") or "") or None
    rules = apply_rules(world, version, {**gates, **given}, mig)
    add_profiles(world, [f"{name}={count}" for name, count in fleet.items()])
    world.complete()
    events = tuple(event_of(entry, number, world, folder) for number, entry in enumerate(timeline, 1))
    return Scenario(world, events, tuple(map(str, fleet))), rules


def _gates_of(wire: Wire, path: str) -> dict[str, bool]:
    """Return the feature gates of a scenario. Raises: InputError."""
    gates = _of(wire, "gates", dict, path)
    if not all(isinstance(on, bool) for on in gates.values()):
        raise InputError("scenario", f"{path}: gates are NAME: true or NAME: false")
    if unknown := [str(name) for name in gates if name not in KNOWN_GATES]:
        text = f"{path}: gate {unknown[0]}: no allocation depends on it"
        raise InputError("scenario", text, hint=nearest(unknown[0], KNOWN_GATES))
    return gates


def _of(wire: Wire, key: str, kind: type[_Kind], path: str) -> _Kind:
    """Return the value of a key of a scenario, or an empty value if it is missing. Raises: InputError."""
    value = wire.get(key)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise InputError("scenario", f"{path}: {key} is not a {'list' if kind is list else 'mapping'}")
    return value


def read_judged_world(files: Sequence[str], given: Mapping[str, Any]) -> World:
    """Read what is to be judged: files, or the cluster; manifests without nodes and slices on the kubeconfig's cluster.

    Raises: InputError, ApiError.
    """
    from dra_driver.tools.options import access_of, read_world
    from dra_driver.tools.output import TerminalProgress

    access = access_of(given)
    if not files or given["profiles"] or not access.kubeconfig:
        return read_world(files, given)
    world = world_of_files(files, TerminalProgress, _home(access))
    if world.of("Node") or world.of("ResourceSlice"):
        return world
    return place_on_cluster(world, world_of_cluster(access, TerminalProgress))


def _home(access: ClusterAccess) -> str:
    """Return the namespace of objects that name none; a kubeconfig that can't be read is refused if it is needed."""
    try:
        return access.home
    except InputError:
        return "default"


def arrivals(world: World) -> TimelineEvent:
    """Return the arrival of everything in a world that waits: its pods, then claims that no pod uses."""
    jobs = list(jobs_of(world))
    pods = sum(job.pod is not None for job in jobs)
    claims = [plural(len(jobs) - pods, "claim")] if len(jobs) > pods else []
    what = " and ".join([plural(pods, "pod"), *claims] if pods or not claims else claims)
    return TimelineEvent("arrive", what, jobs=tuple(jobs))


def jobs_of(world: World) -> Iterator[Job]:
    """Yield the jobs of a world that are not placed yet. Raises: InputError."""
    used: set[int] = set()
    for pod in world.of("Pod"):
        if is_bound(pod) or has_ended(pod):
            used.update(id(claim) for claim in _claims_that_exist(world, pod))
            if is_bound(pod) and is_terminating(pod):
                world.idle.append(f"pod {pod_name(pod)} is terminating: its devices are held until it has ended")
            continue
        if is_terminating(pod):
            used.update(id(claim) for claim in _claims_that_exist(world, pod))
            world.idle.append(f"pod {pod_name(pod)} is terminating and is not scheduled any more")
            continue
        job, claims = _arriving(world, pod)
        used.update(id(claim) for claim in claims)
        if job is not None:
            yield job
    free = [c for c in world.of("ResourceClaim") if id(c) not in used]
    yield from jobs_of_claims([c for c in free if not allocation_of(c)])


def _arriving(world: World, pod: Wire) -> tuple[Job | None, tuple[Wire, ...]]:
    """Return a pod's job and the claims that it has in the world; the job is None if the pod asks for no device."""
    try:
        asked = pod_claims(world, pod)
    except InputError as fault:
        hint = f" ({fault.hint})" if fault.hint else ""
        return Job(pod_name(pod), (), pod, f"{fault.message}{hint}"), ()
    blocked = ""
    if asked.resources and not is_offered(world, asked.resources):
        blocked = unserved(world, asked.resources).removeprefix("waits for ")
    world.idle += [note for note in resource_notes(world, pod) if note not in world.idle]
    if not asked.claims and not blocked:
        world.without_devices.append(pod_name(pod))
        return None, ()
    return Job(pod_name(pod), tuple(map(_without_allocation, asked.claims)), pod, blocked), asked.claims


def running_jobs(world: World) -> dict[str, tuple[Job, str, list[Wire]]]:
    """Return the pods that have a node and hold devices, by name: the job, the node and the claims of each.

    The job does not require the node, so that a pod that is evicted may get another one.
    """
    found = {}
    for pod in world.of("Pod"):
        if not is_bound(pod):
            continue
        claims = [claim for claim in _claims_that_exist(world, pod) if allocation_of(claim)]
        if claims:
            spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
            job = Job(pod_name(pod), tuple(map(_without_allocation, claims)), {**pod, "spec": spec})
            found[job.name] = (job, pod["spec"]["nodeName"], claims)
    return found


def _claims_that_exist(world: World, pod: Wire) -> tuple[Wire, ...]:
    """Return the claims of a pod that runs or has run; for such a pod, a missing claim is not an error."""
    try:
        return pod_claims(world, pod).claims
    except InputError:
        return ()


def _without_allocation(claim: Wire) -> Wire:
    return {key: value for key, value in claim.items() if key != "status"}


def event_of(entry: Any, number: int, world: World, folder: Path) -> TimelineEvent:
    """Return an entry of a timeline as an event; the files that it names are in `folder`. Raises: InputError."""
    if not isinstance(entry, dict) or len(entry) != 1:
        raise InputError("scenario", f"timeline entry {number} is not one KIND: …", hint=", ".join(KINDS))
    [(kind, what)] = entry.items()
    if kind not in KINDS:
        raise InputError("scenario", f"timeline entry {number}: no event {kind!r}", hint=", ".join(KINDS))
    if kind == "arrive":
        return _arrive(what, number, world, folder)
    if kind == "replace":
        if not isinstance(what, dict) or not all(isinstance(what.get(key), str) for key in ("node", "fleet")):
            raise InputError("scenario", f"timeline entry {number}: replace needs {{node, fleet}}")
        other = World(offer=world.offer)
        add_profiles(other, [str(what["fleet"])])
        slices = tuple(_moved(one, what["node"]) for one in other.of("ResourceSlice"))
        return TimelineEvent(kind, what["node"], f"{what['node']} becomes a {what['fleet']}", slices=slices)
    return TimelineEvent(kind, str(what))


def _arrive(what: Any, number: int, world: World, folder: Path) -> TimelineEvent:
    if not isinstance(what, dict):
        raise InputError("scenario", f"timeline entry {number}: arrive needs {{name, requests}} or {{file}}")
    if "file" in what:
        coming = world_of_files([str(folder / str(what["file"]))])
        coming.objects["ResourceClaimTemplate"] += world.of("ResourceClaimTemplate")
        coming.objects["Node"] += world.of("Node")
        coming.classes_by_resource = world.classes_by_resource
        coming.serves_resources, coming.serves_implicit_names = world.serves_resources, world.serves_implicit_names
        coming.add_pods()
        world.unknown_objects += coming.unknown_objects
        arrived = tuple(jobs_of(coming))
        world.idle += coming.idle
        return TimelineEvent("arrive", str(what["file"]), jobs=arrived)
    count = what.get("count", 1)
    if not isinstance(what.get("name"), str) or type(count) is not int or not 0 <= count <= MAX_JOBS:
        text = f"timeline entry {number}: arrive needs a name, and a count of at most {MAX_JOBS:,}"
        raise InputError("scenario", text)
    names = [what["name"]] if count == 1 else [f"{what['name']}-{n}" for n in range(1, count + 1)]
    ShapeChecker().check_devices(what, f"timeline entry {number}")
    jobs = []
    for name in names:
        devices = {key: what[key] for key in ("requests", "constraints", "config") if key in what}
        spec: Wire = {"devices": devices}
        default_requests(spec, f"timeline entry {number}")
        claim = {"metadata": {"name": name, "namespace": "default"}, "spec": spec}
        jobs.append(Job(name, (claim,)))
    return TimelineEvent("arrive", what["name"] if count == 1 else f"{what['name']} ({count})", jobs=tuple(jobs))


def _moved(one: Wire, node: str) -> Wire:
    spec = {**one["spec"], "nodeName": node, "pool": {**one["spec"]["pool"], "name": node, "generation": 2}}
    name = one["metadata"]["name"].replace(one["spec"]["nodeName"], node, 1)
    return {**one, "metadata": {**one["metadata"], "name": name}, "spec": spec}


# The run of a scenario: the state in which it begins, and what happens with each event.


@dataclass(frozen=True, slots=True)
class ScenarioRun:
    """A scenario with the rules that apply to it."""

    scenario: Scenario
    rules: AppliedRules

    @property
    def world(self) -> World:
        """The world of the scenario."""
        return self.scenario.world

    @property
    def is_empty(self) -> bool:
        """Whether the scenario has no claim, no pod and no workload, so that nothing can happen."""
        world = self.world
        there = (*world.of("Pod"), *world.of("ResourceClaim"), *world.workloads, *world.unknown_objects)
        return not there and not any(event.jobs or event.kind != "arrive" for event in self.scenario.events)

    @property
    def profiles(self) -> tuple[str, ...]:
        """The profiles of simulated nodes, as they were given."""
        return self.scenario.profiles

    def moments(
        self, timeline: Timeline, drained: Sequence[str] = (), lines: ProgressLines = NoProgress
    ) -> Iterator[EventOutcome]:
        """Run the events on a timeline, and yield the moment after each; `drained` nodes are drained first."""
        events = [TimelineEvent("drain", node) for node in drained] + list(self.scenario.events)
        for event in counted(events, "events", lines):
            yield timeline.apply(event)

    def beginning(self) -> Timeline:
        """Return the state of the world before the first event."""
        running = running_jobs(self.world)
        held_by_pods = {id(claim) for _, _, claims in running.values() for claim in claims}
        return Timeline(
            nodes=self.world.of("Node"),
            slices=self.world.of("ResourceSlice"),
            classes=self.world.of("DeviceClass"),
            kubernetes=self.rules.kubernetes,
            gates=self.rules.gates,
            held=[claim for claim in self.world.allocated() if id(claim) not in held_by_pods],
            running=running,
        )


def moments_document(moments: Sequence[EventOutcome], rearrangements: Sequence[Rearrangement]) -> OutputDocument:
    """Return the document of all moments, and of the moves that would make room for the jobs that wait at the end."""
    content = {"moments": [moment_document(moment) for moment in moments], "rearrangements": plain(rearrangements)}
    return OutputDocument(DocumentKind.SIMULATION, content)


def moment_document(moment: EventOutcome) -> Wire:
    """Return the document of a moment, with fractions rounded to three decimals."""
    event, usage = moment.event, moment.usage
    jobs = [job.name for job in event.jobs]
    return {
        "event": {"kind": event.kind, "target": None if jobs else event.target, "jobs": jobs},
        "message": event.sentence,
        "placed": plain(moment.placed),
        "waiting": plain(moment.waiting),
        "evicted": list(moment.evicted),
        "usage": {
            "devices": usage.devices,
            "held": round(usage.held, 3),
            "freeElsewhere": round(usage.free_elsewhere, 3),
        },
    }
