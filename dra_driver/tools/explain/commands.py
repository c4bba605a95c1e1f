"""`dra-driver simulate`: what the scheduler would do, without a cluster.

In: a scenario, or the objects of files, profiles or a live cluster; or a batch of problems from another program, one
JSON object per line. Out: which pod gets what, which waits and why, and how full the cluster is. It only reads.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, TYPE_CHECKING, Any

import click

from dra_driver.base.errors import DriverError, ExitCode, InputError, UsageError
from dra_driver.base.versions import VERSIONS
from dra_driver.base.wire import Wire
from dra_driver.tools.options import (
    access_of,
    access_options,
    context_option,
    fleet_option,
    kubeconfig_option,
    mig_option,
)
from dra_driver.tools.output import Column, console, print_code, print_text, printable, show_table, write_document
from dra_driver.tools.world.access import DocumentKind, OutputDocument, batch_fault
from dra_driver.tools.world.fields import folded, folded_words, plural

if TYPE_CHECKING:
    from dra_driver.allocation.explanation import AllocationExplanation, NodeExplanation
    from dra_driver.allocation.funnel import Funnel
    from dra_driver.allocation.moves import Rearrangement
    from dra_driver.allocation.simulation import EventOutcome
    from dra_driver.tools.explain.explanations import Explained
    from dra_driver.tools.explain.scenario import ScenarioRun
    from dra_driver.tools.world.access import ClusterAccess
    from dra_driver.tools.world.world import World


# A line of a batch is not validated beforehand, so a fault in it shows as an exception when the value is read.
_FAULTS_OF_LINES = (
    DriverError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RecursionError,
)
_MAX_SHOWN = 500
MAX_LINE = 64 << 20  # in characters


@click.command(name="simulate")
@click.argument("scenario", required=False, metavar="[SCENARIO.yaml]")
@click.option("-f", "--file", "files", multiple=True, metavar="FILE", help="Pods, claims, classes, nodes, slices.")
@fleet_option("Simulated nodes.")
@click.option(
    "--add-nodes", "added", multiple=True, metavar="PROFILE[=N]", help="Simulate more nodes in addition to those given."
)
@click.option("--drain", "drained", multiple=True, metavar="NODE", help="Drain this node first.")
@click.option("--defrag", "defragments", is_flag=True, help="Find which running pods to move so that waiting pods fit.")
@kubeconfig_option
@context_option
@click.option(
    "-n", "--namespace", metavar="NAME", default="", help="The namespace to read if you may not read all namespaces."
)
@click.option("--kubernetes", metavar="VERSION", default=None, help="The Kubernetes version whose rules apply.")
@click.option(
    "--gate", "gates", multiple=True, metavar="NAME=BOOL", help="A feature gate that differs from the default."
)
@mig_option
@click.option("--output", "-o", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
@click.option(
    "--batch", "batch", default=None, metavar="FILE", help="A batch of problems for programs, one JSON object per line."
)
def simulate_command(scenario: str | None, batch: str | None, output: str, *, defragments: bool, **given: Any) -> int:
    """Simulate what happens to pods and claims, with the scheduler's own verdicts.

    \b
    dra-driver simulate examples/scenarios/queue.yaml
    dra-driver simulate --fleet dgx-h100=2 -f pods.yaml --drain dgx-h100-1
    dra-driver simulate --add-nodes dgx-h100=4          the current cluster, with four more nodes
    dra-driver simulate -f pods.yaml                    the current cluster, if these pods arrived
    dra-driver simulate examples/scenarios/fragmented.yaml --defrag
    dra-driver simulate --batch problems.jsonl          many problems, for programs (- is standard input)

    Pods are placed in the order of their arrival, on the first node that fits. There is no -A or -l, because pods of
    all namespaces compete for the devices.

    \b
    A line of --batch: {"id", "kubernetes": "1.35", "input": {features, nodes, classes, slices, allocated, claims}}
    Its answer:        {"apiVersion", "kind": "AllocationVerdict", "id",
                        "nodes": {NAME: {"ok", "results", "category", "error"}}}
    If not readable:   {"apiVersion", "kind": "BatchFault", "id", "line", "error"}

    Running pods stay on their nodes; the pods of a drained node wait again (except those of DaemonSets), as if their
    controllers had created them again. Deployments, Jobs, PyTorchJobs and other objects with a pod template make as
    many pods as they ask for.

    --defrag proposes, for each pod that waits at the end, the fewest moves that make room for this pod: up to 8 running
    pods of one node, each of which fits elsewhere. It moves nothing. If you delete these pods, the scheduler decides
    where they run next, so cordon the devices that must stay free.

    Exit status 1: a pod or claim still waits at the end; 3: a file or a line of a batch is wrong, or an object is of an
    unknown kind; 5: the result is not known, because something in the cluster may not be read.
    """  # noqa: D301
    if batch is not None:
        return _batch(batch)
    from dra_driver.allocation.moves import moves_for_waiting
    from dra_driver.tools.explain.scenario import moments_document
    from dra_driver.tools.options import print_unseen
    from dra_driver.tools.output import TerminalProgress
    from dra_driver.tools.world.world import headline, unknown_reason

    run = _read_run(scenario, given)
    world = run.world
    if run.is_empty and given["files"]:
        raise InputError("missing", f"no pod, no claim and no pod template is in {', '.join(given['files'])}")
    if why := unknown_reason(world):
        print(printable(f"dra-driver: what would happen is not known: {why}"), file=sys.stderr)
        return ExitCode.ENVIRONMENT
    timeline = run.beginning()
    moments = list(run.moments(timeline, given["drained"], TerminalProgress))
    proposed = dict(moves_for_waiting(timeline)) if defragments else {}
    _print_rules(headline(run.rules, world, run.profiles), is_table=output == "table")
    if output == "table":
        _show_all(moments, proposed, world)
    else:
        write_document(moments_document(moments, [found for found in proposed.values() if found]), output)
    print_unseen(world)
    world.refuse_unknown_objects()  # at the end, so that the result for all other objects is shown first
    return _exit_code(world, moments)


def _print_rules(text: str, *, is_table: bool) -> None:
    if is_table:
        print_text(console(), f"({text})", style="dim")
    else:
        print(printable(f"dra-driver: {text}"), file=sys.stderr)


def _read_run(path: str | None, given: dict[str, Any]) -> ScenarioRun:
    """Read the scenario, or make one of the files, the profiles or the cluster."""
    from dra_driver.tools.explain.scenario import Scenario, ScenarioRun, arrivals, read_judged_world, read_scenario
    from dra_driver.tools.options import apply_options, given_gates
    from dra_driver.tools.world.world import add_profiles

    more = [*given["profiles"], *given["added"]]
    if path is not None:
        gates = given_gates(given["gates"], given["kubernetes"] or VERSIONS[-1])
        scenario, rules = read_scenario(path, given["kubernetes"], gates, given["mig"])
        add_profiles(scenario.world, more)
        scenario.world.complete()
        return ScenarioRun(scenario, rules)
    world = read_judged_world(given["files"], given)
    rules = apply_options(world, given, more)
    world.complete()
    return ScenarioRun(Scenario(world, (arrivals(world),), tuple(more)), rules)


def _exit_code(world: World, moments: Sequence[EventOutcome]) -> int:
    if world.unseen:
        return ExitCode.ENVIRONMENT
    return ExitCode.NO_MATCH if moments and moments[-1].waiting else ExitCode.OK


def _show_all(moments: Sequence[EventOutcome], proposed: Mapping[str, Rearrangement | None], world: World) -> None:
    for moment in moments:
        _show(moment)
    for job, found in proposed.items():
        _show_moves(job, found)
    for sentence in world.idle:
        print_text(console(), sentence, style="yellow")
    if names := world.without_devices:
        more = f" and {len(names) - 8:,} more" if len(names) > 8 else ""
        print_text(console(), f"ask for no device: {', '.join(names[:8])}{more}", style="dim")


def _show(moment: EventOutcome) -> None:
    out = console()
    usage = moment.usage
    used = (
        f"{round(usage.held, 1):g} of {plural(usage.devices, 'device')} held ({usage.share:.0%}),"
        f" {usage.free_elsewhere:.0%} of what is free lies outside the freest node"
    )
    print_text(out, f"{moment.event.sentence}: {used}", style="bold")
    if moment.evicted:
        print_text(out, f"evicted: {', '.join(moment.evicted)}", indent=2, style="yellow")
    if moment.placed:
        rows = [[one.job, one.node, ", ".join(one.devices)] for one in moment.placed]
        show_table(out, "", [Column("placed"), Column("node"), Column("devices")], rows)
    reasons: dict[str, list[str]] = {}
    for one in moment.waiting:
        reasons.setdefault(one.reason, []).append(one.job)
    for reason, jobs in reasons.items():
        verb = "waits" if len(jobs) == 1 else "wait"
        print_text(out, f"{folded_words(jobs, 'more')} {verb}: {reason}", indent=2, style="red")


def _show_moves(job: str, found: Rearrangement | None) -> None:
    out = console()
    if found is None:
        print_text(out, f"{job}: no moves found that make room for it", style="red")
        return
    print_text(out, f"{job} would fit on {found.node} after {plural(len(found.moves), 'move')}", style="bold")
    rows = [[move.job, move.source, ", ".join(move.leaves), move.target, ", ".join(move.gets)] for move in found.moves]
    columns = [Column("move"), Column("from"), Column("leaves"), Column("to"), Column("gets")]
    show_table(out, "", columns, rows)


def _batch(path: str) -> int:
    from dra_driver.tools.world.documents import shown

    faults = 0
    try:
        with click.open_file(path, encoding="utf-8-sig") as stream:
            for answer in _answers(stream):
                faults += "error" in answer
                sys.stdout.write(json.dumps(answer, separators=(",", ":")) + "\n")
    except (OSError, ValueError) as fault:
        if isinstance(fault, BrokenPipeError):
            raise
        raise InputError("unreadable", f"{shown(path)} can't be read: {fault}") from fault
    if faults:
        print(f"dra-driver: {plural(faults, 'line')} of {shown(path)} can't be answered [input.batch]", file=sys.stderr)
    return ExitCode.BAD_INPUT if faults else ExitCode.OK


def _answers(stream: IO[Any]) -> Iterator[Wire]:
    from dra_driver.allocation.allocator import simulate_batch_line

    for number, text in enumerate(iter(lambda: stream.readline(MAX_LINE + 1), ""), 1):
        if len(text) > MAX_LINE:
            raise InputError("too-large", f"line {number} of the batch is longer than {MAX_LINE >> 20} Mi characters")
        if not text.strip():
            continue
        line: Wire = {}
        try:
            line = json.loads(text)
            yield OutputDocument(DocumentKind.ALLOCATION_VERDICT, simulate_batch_line(line)).wire()
        except _FAULTS_OF_LINES as fault:
            found = line.get("id") if isinstance(line, dict) else None
            yield batch_fault(found, number, f"{type(fault).__name__}: {str(fault)[:_MAX_SHOWN]}").wire()


# `dra-driver explain`: why a claim or pod fits or does not, node by node.

MAX_NODES = 8  # the most nodes that are shown in full


@click.command(name="explain")
@click.argument("words", nargs=-1, metavar="[KIND [NAME] | KIND/NAME]")
@click.option("-f", "--file", "files", multiple=True, metavar="FILE", help="Claims, templates, pods, workloads, nodes.")
@click.option("--slices", multiple=True, metavar="FILE", help="ResourceSlices (kubectl get resourceslices -o yaml).")
@fleet_option("Simulated nodes instead of slices.")
@access_options()
@click.option("--node", "only", multiple=True, metavar="NAME", help="Consider only these nodes.")
@click.option(
    "--kubernetes",
    metavar="VERSION",
    default=None,
    help="The Kubernetes version whose rules apply [default: the cluster's, 1.35].",
)
@click.option(
    "--gate", "gates", multiple=True, metavar="NAME=BOOL", help="A feature gate that differs from the default."
)
@mig_option
@click.option("--output", "-o", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def explain_command(words: tuple[str, ...], output: str, **given: Any) -> int:
    """Explain why a claim or pod fits, or why not, with the scheduler's own verdicts.

    \b
    dra-driver explain -f examples/resourceclaims/01-one-gpu.yaml --fleet dgx-h100=4
    dra-driver explain claim my-gpu                              in the current cluster
    dra-driver explain -f deployment.yaml                        before it is applied to the current cluster
    dra-driver explain pods -n team-a -l app=train               all of these pods
    dra-driver explain pod train -f pod.yaml --slices slices.yaml
    dra-driver explain deployment/server -f server.yaml --fleet dgx-h100=4
    dra-driver explain -f everything.yaml --fleet dgx-h100=4     all pods and claims of a file

    KIND is claim, pod, or anything with a pod template: Deployment, Job, PyTorchJob, RayCluster, LeaderWorkerSet …
    Its pods are explained one after the other, each with the devices of the earlier ones taken.

    If there are more than 24 nodes, equal nodes are shown together: -o json has the first of them in `node` and the
    names of the others in `like`. The first 256 kinds of nodes also have `funnels`, which follow each device.

    Exit status 1: something fits nowhere or waits; 3: an object is of an unknown kind; 4: a selector fails on a device,
    or another error ends the pod's scheduling; 5: the answer is not known, because something in the cluster may not be
    read.
    """  # noqa: D301
    from dra_driver.tools.explain.advice import advised
    from dra_driver.tools.explain.explanations import (
        SubjectExplainer,
        exit_code,
        explanations_document,
        is_one_object,
        subjects_of,
    )
    from dra_driver.tools.options import apply_options, print_unseen
    from dra_driver.tools.output import TerminalProgress
    from dra_driver.tools.world.world import headline

    asked = _asked_words(words, given)
    access = None if given["files"] or given["slices"] or given["profiles"] else access_of(given)
    namespace = access.home if access else given["namespace"]
    world = _world(given, access, asked, namespace)
    rules = apply_options(world, given, given["profiles"])
    world.complete()
    selected = _selected(world, given, namespace if access else "")
    subjects = subjects_of(world, asked, namespace, _last_event(access), selected)
    explainer = SubjectExplainer(world, rules, given["only"], TerminalProgress)
    explained = [advised(world, rules, subject, explainer.explain(subject)) for subject in subjects]
    if output == "table":
        note = "" if explainer.is_exact else ", derived from its source"
        show_all(explained, headline(rules, world, given["profiles"], note), is_cluster=access is not None)
    else:
        write_document(explanations_document(explained, rules, is_one=is_one_object(asked)), output)
    print_unseen(world)
    if not asked:
        world.refuse_unknown_objects()
    if not explained and given["files"]:
        raise InputError("missing", f"no pod, no claim and no pod template is in {', '.join(given['files'])}")
    return exit_code(explained, world)


def _world(given: dict[str, Any], access: ClusterAccess | None, asked: tuple[str, ...], namespace: str) -> World:
    from dra_driver.tools.explain.scenario import read_judged_world
    from dra_driver.tools.world.workloads import add_cluster_workload

    world = read_judged_world([*given["files"], *given["slices"]], given)
    if access and len(asked) == 2:
        add_cluster_workload(world, access, asked, namespace)
    return world


def _selected(world: World, given: dict[str, Any], namespace: str) -> Callable[[Wire], bool]:
    """Return a predicate for the objects that -n, -A and -l select; `namespace` is the default, "" stands for all.

    Of manifests that are judged on a cluster, only their own objects are selected.
    """
    from dra_driver.tools.world.fields import label_selector

    has_labels = label_selector(given["labels"])
    named = "" if given["everywhere"] else given["namespace"] or namespace

    def selected(wire: Wire) -> bool:
        is_own = id(wire) not in world.from_cluster
        return is_own and has_labels(wire) and named in {"", wire["metadata"].get("namespace") or "default"}

    return selected


def _asked_words(words: tuple[str, ...], given: dict[str, Any]) -> tuple[str, ...]:
    """Return KIND and NAME; without a name, all objects of a kind are meant, without both, all. Raises: UsageError."""
    has_name = len(words) == 2 or (len(words) == 1 and "/" in words[0])
    if has_name and (given["labels"] or given["everywhere"]):
        raise UsageError("target", "a name can't be combined with -l or -A: leave out one of them")
    if len(words) == 1 and words[0].count("/") == 1 and all(words[0].split("/")):
        return tuple(words[0].split("/"))
    if len(words) == 2 or (len(words) == 1 and "/" not in words[0]) or (not words and given["files"]):
        return words
    raise UsageError("target", "explain needs KIND NAME or KIND/NAME, `pods` or `claims` for all, or -f FILE alone")


def _last_event(access: ClusterAccess | None) -> Callable[[str, str], str]:
    """Return a function that returns the last event of a pod; without a cluster, it always returns ""."""
    if access is None:
        return lambda _namespace, _name: ""
    from dra_driver.tools.world.workloads import last_event

    return partial(last_event, access)


def show_all(explained: Sequence[Explained], headline: str, *, is_cluster: bool) -> None:
    """Print the explanations, one after the other."""
    from dra_driver.tools.explain.advice import WRITE

    out = console()
    if not explained and is_cluster:
        print_text(out, "there is nothing to explain: no pod and no claim was found")
    for place, (subject, explanation) in enumerate(explained):
        if place:
            out.print()
        if explanation is None:
            print_text(out, subject.answer, style="bold green" if subject.ok else "bold red")
        else:
            head = f"{subject.name}: " if len(explained) > 1 else ""
            print_text(out, f"{head}{explanation.sentence}", style="bold green" if explanation.ok else "bold red")
        for note in subject.notes:
            (print_code if note.startswith(WRITE) else print_text)(out, note, indent=2, style="yellow")
        if place == 0:
            print_text(out, f"({headline})", style="dim")
        if explanation is not None:
            _show_explanation(out, explanation)


def _show_explanation(out: Any, explanation: AllocationExplanation) -> None:
    alike: dict[Any, list[NodeExplanation]] = {}
    for node in sorted(explanation.nodes, key=lambda node: (node.ok, bool(node.skipped))):
        alike.setdefault((node.sentence, node.notes), []).append(node)
    if len(alike) == 1 and explanation.ok and not explanation.nodes[0].notes:
        return  # the verdict is the same for all nodes, and nothing remains to be shown
    for nodes in list(alike.values())[:MAX_NODES]:
        names = [name for node in nodes for name in (node.node, *node.like)]
        out.print()
        is_repeated = len(alike) == 1 and nodes[0].sentence.removeprefix("fits: ") in explanation.sentence
        print_text(out, f"{folded(names)}{':' if is_repeated else f': {nodes[0].sentence}'}", style="bold")
        for note in nodes[0].notes:
            print_text(out, note, indent=2, style="yellow")
        if not nodes[0].ok:
            _show_funnels(out, nodes[0])
    if len(alike) > MAX_NODES:
        out.print(f"\n{len(alike) - MAX_NODES} more kinds of nodes; --node NAME shows one, -o json all")


def _show_funnels(out: Any, node: NodeExplanation) -> None:
    """Show each funnel once, with all requests for which it is the same."""
    alike: dict[Any, list[Funnel]] = {}
    for funnel in node.funnels:
        alike.setdefault((funnel.claim, funnel.wants, *map(tuple, _rows(funnel))), []).append(funnel)
    columns = [Column("stage"), Column("left", is_number=True), Column("lost", is_number=True), Column("why")]
    for funnels in alike.values():
        first = funnels[0]
        wants = "all" if first.wants is None else str(first.wants)
        names = ", ".join(funnel.request for funnel in funnels)
        asked = f"request {names}, wants {wants}" if len(funnels) == 1 else f"requests {names}, each wants {wants}"
        print_text(out, f"claim {first.claim}, {asked}", indent=2)
        show_table(out, "", columns, _rows(first))


def _rows(one: Funnel) -> list[list[str]]:
    rows = [["devices", str(one.devices), "", ""]]
    if one.errors:
        rows.append(["selector errors", "", str(len(one.errors)), f"{one.errors[0].device}: {one.errors[0].reason}"])
    for stage in one.stages:
        if stage.lost:
            reasons = list(dict.fromkeys(loss.reason for loss in stage.lost))
            more = f" (and {plural(len(reasons) - 1, 'other reason')})" if len(reasons) > 1 else ""
            rows.append([stage.name, str(stage.left), str(len(stage.lost)), reasons[0] + more])
    rows.append(["fits", str(one.fits), "", ""])
    return rows
