"""`dra-driver simulate`: what the scheduler would do, without a cluster.

In: a scenario, or the objects of files, profiles or a live cluster; or a batch of problems from another program, one
JSON object per line. Out: which pod gets what, which waits and why, and how full the cluster is. It only reads.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any

import click

from dra_driver.cli.inputs.mig_option import mig_option
from dra_driver.cli.inputs.progress import progress
from dra_driver.cli.output import Column, console, say, show_table, write_document
from dra_driver.model.errors import DriverError, ExitCode, InputError
from dra_driver.model.kubernetes import VERSIONS
from dra_driver.model.wire import Wire

if TYPE_CHECKING:
    from dra_driver.allocation.simulation.timeline import Moment, Timeline
    from dra_driver.cli.inputs.rules import AppliedRules
    from dra_driver.cli.inputs.world import World
    from dra_driver.cli.simulate.scenario import Scenario

# A line of a batch is not checked beforehand: whatever is wrong with it shows where it is first looked at.
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
_MOST_SAID = 500
LINE_MAX = 64 << 20  # in characters


@click.command(name="simulate")
@click.argument("scenario", required=False, metavar="[SCENARIO.yaml]")
@click.option("-f", "--file", "files", multiple=True, metavar="FILE", help="Pods, claims, classes, nodes, slices.")
@click.option("--fleet", "profiles", multiple=True, metavar="PROFILE[=N]", help="Simulated nodes.")
@click.option("--add-nodes", "added", multiple=True, metavar="PROFILE[=N]", help="What if there were more nodes.")
@click.option("--drain", "drained", multiple=True, metavar="NODE", help="What if a node were drained first.")
@click.option("--kubeconfig", metavar="FILE", default=None, help="The cluster, where nothing else is given.")
@click.option("--kubernetes", metavar="VERSION", default=None, help="Whose rules apply.")
@click.option("--gate", "gates", multiple=True, metavar="NAME=BOOL", help="A feature gate that differs.")
@mig_option
@click.option("--output", "-o", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
@click.option(
    "--batch", "batch", default=None, metavar="FILE", help="A batch of problems for programs, one JSON object per line."
)
def command(scenario: str | None, batch: str | None, output: str, **given: Any) -> int:
    """Simulate what happens to pods and claims, with the scheduler's own verdicts.

    \b
    dra-driver simulate examples/scenarios/queue.yaml
    dra-driver simulate --fleet dgx-h100=2 -f pods.yaml --drain dgx-h100-1
    dra-driver simulate --add-nodes dgx-h100=4          the current cluster, with four more nodes
    dra-driver simulate --batch problems.jsonl          (- is standard input)

    Pods are placed in their order of arrival on the first node that fits. A batch line is
      {"id": …, "kubernetes": "1.35", "input": {features, nodes, classes, slices, allocated, claims}}
    and is answered by
      {"id": …, "nodes": {name: {"ok", "results", "category", "error"}}}

    Pods that run already are where they are; a drain sends them back to the queue (but for those of DaemonSets), as if
    their controllers had made them anew. Of Deployments, Jobs, PyTorchJobs and all else with a pod template as many
    pods arrive as it asks for.

    Exit status 1: somebody waits at the end; 3: a file or a batch line is wrong, or an object is not understood.
    """  # noqa: D301
    if batch is not None:
        return _batch(batch)
    from dra_driver.cli.inputs.rules import headline

    played, timeline, rules = _played(scenario, given)
    moments = list(_play(played, timeline, given))
    _say_rules(headline(rules, played.world, played.profiles), is_table=output == "table")
    if output == "table":
        for moment in moments:
            _show(moment)
        if names := played.world.without_devices:
            more = f" and {len(names) - 8:,} more" if len(names) > 8 else ""
            say(console(), f"ask for no device: {', '.join(names[:8])}{more}", style="dim")
    else:
        write_document([asdict(moment) for moment in moments], output)
    return _exit_code(played, moments)


def _exit_code(played: Scenario, moments: list[Moment]) -> int:
    """Return the exit code; what nobody understood is named here, after what was judged."""
    strangers = played.world.strangers
    if strangers:
        raise InputError(
            "not-understood",
            f"not judged, because no pod template is known in it: {', '.join(strangers[:20])}",
            hint="give the pods that it makes (kubectl get pods -o yaml) beside it",
        )
    return ExitCode.NO_MATCH if moments and moments[-1].waiting else ExitCode.OK


def _say_rules(text: str, *, is_table: bool) -> None:
    if is_table:
        say(console(), f"({text})", style="dim")
    else:
        print(f"dra-driver: {text}", file=sys.stderr)


def _played(path: str | None, given: dict[str, Any]) -> tuple[Scenario, Timeline, AppliedRules]:
    """Read everything, and the state that it begins with."""
    from dra_driver.allocation.simulation.timeline import Timeline
    from dra_driver.cli.inputs.rules import DEFAULT_VERSION, given_gates, settle_rules
    from dra_driver.cli.inputs.world import add_profiles
    from dra_driver.cli.simulate.scenario import Scenario, arrivals, read_scenario, running_jobs

    if path is not None:
        gates = given_gates(given["gates"], given["kubernetes"] or VERSIONS[-1])
        scenario, rules = read_scenario(path, given["kubernetes"], gates, given["mig"])
        add_profiles(scenario.world, [*given["profiles"], *given["added"]])
        scenario.world.complete()
    else:
        world = _world(given)
        gates = given_gates(given["gates"], given["kubernetes"] or world.kubernetes or DEFAULT_VERSION)
        rules = settle_rules(world, given["kubernetes"], gates, given["mig"])
        add_profiles(world, [*given["profiles"], *given["added"]])
        world.complete()
        scenario = Scenario(world, (arrivals(world),), (*given["profiles"], *given["added"]))
    world = scenario.world
    running = running_jobs(world)
    held_by_pods = {id(claim) for _, _, claims in running.values() for claim in claims}
    timeline = Timeline(
        nodes=world.of("Node"),
        slices=world.of("ResourceSlice"),
        classes=world.of("DeviceClass"),
        kubernetes=rules.kubernetes,
        gates=rules.gates,
        held=[claim for claim in world.allocated() if id(claim) not in held_by_pods],
        running=running,
    )
    return scenario, timeline, rules


def _world(given: dict[str, Any]) -> World:
    from dra_driver.cli.inputs.cluster import default_kubeconfig
    from dra_driver.cli.inputs.world import world_of_cluster, world_of_files

    if given["files"] or given["profiles"]:
        return world_of_files(given["files"])
    return world_of_cluster(given["kubeconfig"] or default_kubeconfig())


def _play(scenario: Scenario, timeline: Timeline, given: dict[str, Any]) -> Iterator[Moment]:
    from dra_driver.allocation.simulation.timeline import TimelineEvent

    events = [TimelineEvent("drain", node) for node in given["drained"]] + list(scenario.events)
    for event in progress(events, "events"):
        yield timeline.happen(event)


def _show(moment: Moment) -> None:
    out = console()
    usage = moment.usage
    used = (
        f"{usage.used:g} of {usage.units} units used ({usage.share:.0%}), {usage.scattered:.0%} of the rest scattered"
    )
    say(out, f"{moment.label}: {used}", style="bold")
    for name in moment.evicted:
        say(out, f"evicted: {name}", indent=2, style="yellow")
    if moment.placed:
        rows = [[one.job, one.node, ", ".join(one.devices)] for one in moment.placed]
        show_table(out, "", [Column("placed"), Column("node"), Column("devices", rank=1)], rows)
    for one in moment.waiting:
        say(out, f"waits: {one.job}: {one.reason}", indent=2, style="red")


def _batch(path: str) -> int:
    faults = 0
    try:
        with click.open_file(path, encoding="utf-8-sig") as stream:
            for answer in _answers(stream):
                faults += "error" in answer
                sys.stdout.write(json.dumps(answer, separators=(",", ":")) + "\n")
    except (OSError, ValueError) as fault:
        if isinstance(fault, BrokenPipeError):
            raise
        raise InputError("unreadable", f"{path[:200]!r} can't be read: {fault}") from fault
    if faults:
        print(f"dra-driver: {faults} lines of {path} are wrong [input.batch]", file=sys.stderr)
    return ExitCode.BAD_INPUT if faults else ExitCode.OK


def _answers(stream: IO[Any]) -> Iterator[Wire]:
    from dra_driver.allocation import simulate_batch_line

    for number, text in enumerate(iter(lambda: stream.readline(LINE_MAX + 1), ""), 1):
        if len(text) > LINE_MAX:
            raise InputError("too-large", f"line {number} of the batch is longer than {LINE_MAX >> 20} Mi characters")
        if not text.strip():
            continue
        line: Wire = {}
        try:
            line = json.loads(text)
            yield simulate_batch_line(line)
        except _FAULTS_OF_LINES as fault:
            found = line.get("id") if isinstance(line, dict) else None
            yield {"id": found, "error": f"line {number}: {type(fault).__name__}: {str(fault)[:_MOST_SAID]}"}
