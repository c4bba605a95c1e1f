"""`dra-driver simulate`: what the scheduler would do, without a cluster.

In: a scenario, or the objects of files, profiles or a live cluster; or a batch of problems from another program, one
JSON object per line. Out: which pod gets what, which waits and why, and how full the cluster is. It only reads.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import click

from dra_driver.cli.inputs.access import context_option, kubeconfig_option
from dra_driver.cli.inputs.mig_option import mig_option
from dra_driver.cli.output import Column, console, print_text, printable, show_table, write_document
from dra_driver.model.errors import DriverError, ExitCode, InputError
from dra_driver.model.kubernetes import VERSIONS
from dra_driver.model.wire import Wire
from dra_driver.views.envelope import DocumentKind, OutputDocument, batch_fault
from dra_driver.views.wording import folded_words, plural

if TYPE_CHECKING:
    from dra_driver.allocation.simulation.events import EventOutcome
    from dra_driver.allocation.simulation.moves import Rearrangement
    from dra_driver.views.worlds.scenario_run import ScenarioRun
    from dra_driver.views.worlds.world import World

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
@click.option("--fleet", "profiles", multiple=True, metavar="PROFILE[=N]", help="Simulated nodes.")
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
    from dra_driver.allocation.simulation.moves import moves_for_waiting
    from dra_driver.cli.inputs.progress import TerminalProgress
    from dra_driver.cli.inputs.worlds import print_unseen
    from dra_driver.views.worlds.rules import headline
    from dra_driver.views.worlds.scenario_run import moments_document
    from dra_driver.views.worlds.unknown import unknown_reason

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
    from dra_driver.cli.inputs.gates import given_gates
    from dra_driver.cli.inputs.worlds import apply_options, read_world
    from dra_driver.views.worlds.scenario import Scenario, arrivals, read_scenario
    from dra_driver.views.worlds.scenario_run import ScenarioRun
    from dra_driver.views.worlds.simulated_nodes import add_profiles

    more = [*given["profiles"], *given["added"]]
    if path is not None:
        gates = given_gates(given["gates"], given["kubernetes"] or VERSIONS[-1])
        scenario, rules = read_scenario(path, given["kubernetes"], gates, given["mig"])
        add_profiles(scenario.world, more)
        scenario.world.complete()
        return ScenarioRun(scenario, rules)
    world = read_world(given["files"], given)
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
    rows = [[one.job, one.source, ", ".join(one.leaves), one.target, ", ".join(one.gets)] for one in found.moves]
    columns = [Column("move"), Column("from"), Column("leaves"), Column("to"), Column("gets")]
    show_table(out, "", columns, rows)


def _batch(path: str) -> int:
    from dra_driver.views.objects.texts import shown

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
    from dra_driver.allocation.batch import simulate_batch_line

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
