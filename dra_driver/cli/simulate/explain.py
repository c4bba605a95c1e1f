"""`dra-driver explain`: why a claim or pod fits or does not, node by node.

In: objects of a live cluster, or of files. Out: one sentence, then a funnel per node and request. It only reads.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from dra_driver.cli.inputs.gates import read_gates
from dra_driver.cli.inputs.progress import progress
from dra_driver.cli.output import Column, console, folded, say, show_table, write_document
from dra_driver.model.errors import ExitCode, InputError
from dra_driver.model.wire import Wire

if TYPE_CHECKING:
    from dra_driver.allocation.explaining.explanation import AllocationExplanation, NodeExplanation
    from dra_driver.allocation.explaining.funnel import Funnel
    from dra_driver.cli.inputs.world import World

DEFAULT_VERSION = "1.35"
MOST_NODES = 8  # the number of nodes shown in full
MOST_WRITTEN = 256  # the number of distinct nodes whose devices a document lists one by one


@click.command(name="explain")
@click.argument("kind", type=click.Choice(["claim", "pod"]))
@click.argument("name")
@click.option("-n", "--namespace", default="default", show_default=True)
@click.option("-f", "--file", "files", multiple=True, metavar="FILE", help="Claims, templates, pods, classes, nodes.")
@click.option("--slices", multiple=True, metavar="FILE", help="ResourceSlices (kubectl get resourceslices -o yaml).")
@click.option("--fleet", "profiles", multiple=True, metavar="PROFILE[=N]", help="Simulated nodes instead of slices.")
@click.option("--kubeconfig", metavar="FILE", default=None, help="The cluster to read if no file is given.")
@click.option("--node", "only", multiple=True, metavar="NAME", help="Explain only these nodes.")
@click.option(
    "--kubernetes",
    metavar="VERSION",
    default=None,
    help="The Kubernetes version whose rules apply [default: the cluster's, 1.35].",
)
@click.option(
    "--gate", "gates", multiple=True, metavar="NAME=BOOL", help="A feature gate that differs from the default."
)
@click.option("--output", "-o", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def command(kind: str, name: str, namespace: str, output: str, **given: Any) -> int:
    """Explain why a claim or pod fits, or why not, with the scheduler's own verdicts.

    \b
    dra-driver explain claim my-gpu                              in the current cluster
    dra-driver explain pod train -f pod.yaml --slices slices.yaml
    dra-driver explain claim big -f claim.yaml --fleet dgx-h100=4

    Of more than 24 nodes, those that are alike are judged once and shown together: in -o json the first of them is in
    `node`, the names of the others in `like`. Devices are followed one by one (`funnels`) for the first 256 kinds.

    Exit status 1: it fits nowhere; 4: a selector fails on a device, or another error ends the pod's scheduling.
    """  # noqa: D301
    from dra_driver.allocation.allocator import Allocator
    from dra_driver.allocation.explaining.explanation import explain
    from dra_driver.allocation.explaining.node_kinds import FEW_NODES
    from dra_driver.allocation.rules import GATES

    world = _world(given)
    pod, claims = _asked(world, kind, namespace, name)
    version = given["kubernetes"] or world.kubernetes or DEFAULT_VERSION
    gates = read_gates(given["gates"], version, known=GATES, asker="allocation")
    state: Any = {
        "slices": world.of("ResourceSlice"),
        "classes": world.of("DeviceClass"),
        "allocated": world.allocated(),
    }
    allocator = Allocator(**state, kubernetes=version, gates=gates)
    newer = None
    if allocator.rules.kubernetes == "1.35":
        newer = Allocator(**state, kubernetes="1.36", features=allocator.features)
    nodes = [n for n in world.of("Node") if not given["only"] or n["metadata"]["name"] in given["only"]]
    explanation = explain(
        allocator, claims, progress(nodes, "nodes"), pod=pod, newer=newer, folds=len(nodes) > FEW_NODES
    )
    if output == "table":
        _show(explanation)
    else:
        write_document(_document(explanation), output)
    if explanation.aborts:
        return ExitCode.ABORTS_SCHEDULING
    return ExitCode.OK if explanation.ok else ExitCode.NO_MATCH


def _world(given: dict[str, Any]) -> World:
    from dra_driver.cli.inputs.cluster import default_kubeconfig
    from dra_driver.cli.inputs.world import add_profiles, world_of_cluster, world_of_files

    files = [*given["files"], *given["slices"]]
    if files or given["profiles"]:
        world = world_of_files(files)
        add_profiles(world, given["profiles"])
    else:
        world = world_of_cluster(given["kubeconfig"] or default_kubeconfig())
    world.complete()
    return world


def _asked(world: World, kind: str, namespace: str, name: str) -> tuple[Wire | None, list[Wire]]:
    """Return what to explain: the pod, if it is one, and its claims that have no allocation yet."""
    from dra_driver.cli.inputs.world import pod_claims

    found = world.find("Pod" if kind == "pod" else "ResourceClaim", namespace, name)
    if found is None:
        raise InputError("missing", f"there is no {kind} {namespace}/{name}", hint="-n gives the namespace, -f a file")
    claims = pod_claims(world, found) if kind == "pod" else [found]
    waiting = [claim for claim in claims if not (claim.get("status") or {}).get("allocation")]
    if not waiting:
        raise InputError("allocated", f"{kind} {namespace}/{name} waits for no device: its claims are allocated")
    return (found if kind == "pod" else None), waiting


def _document(explanation: AllocationExplanation) -> Wire:
    """Write a document of all distinct nodes, the first of them with all their devices."""
    nodes = [
        asdict(node if place < MOST_WRITTEN else replace(node, funnels=()))
        for place, node in enumerate(explanation.nodes)
    ]
    return {
        "ok": explanation.ok,
        "sentence": explanation.sentence,
        "nodes": nodes,
        "aborts": explanation.aborts,
        "kubernetes": explanation.kubernetes,
        "exact": explanation.exact,
    }


def _show(explanation: AllocationExplanation) -> None:
    out = console()
    verdicts = "" if explanation.exact else ", derived from its source"
    say(out, explanation.sentence, style="bold green" if explanation.ok else "bold red")
    out.print(f"(rules of Kubernetes {explanation.kubernetes}{verdicts})", style="dim")
    alike: dict[Any, list[NodeExplanation]] = {}
    for node in sorted(explanation.nodes, key=lambda node: (node.ok, bool(node.skipped))):
        alike.setdefault((node.sentence, node.notes), []).append(node)
    for nodes in list(alike.values())[:MOST_NODES]:
        names = [name for node in nodes for name in (node.node, *node.like)]
        out.print()
        say(out, f"{folded(names)}: {nodes[0].sentence}", style="bold")
        for note in nodes[0].notes:
            say(out, note, indent=2, style="yellow")
        if not nodes[0].ok:
            _show_funnels(out, nodes[0])
    if len(alike) > MOST_NODES:
        out.print(f"\n{len(alike) - MOST_NODES} more kinds of nodes; --node NAME shows one, -o json all")


def _show_funnels(out: Any, node: NodeExplanation) -> None:
    for one in node.funnels:
        wants = "all" if one.wants is None else str(one.wants)
        say(out, f"claim {one.claim}, request {one.request}, wants {wants}", indent=2)
        show_table(
            out,
            "",
            [Column("stage"), Column("left", is_number=True), Column("lost", is_number=True), Column("why")],
            _rows(one),
        )


def _rows(one: Funnel) -> list[list[str]]:
    rows = [["devices", str(one.devices), "", ""]]
    if one.errors:
        rows.append(["selector errors", "", str(len(one.errors)), f"{one.errors[0].device}: {one.errors[0].reason}"])
    for stage in one.stages:
        if stage.lost:
            reasons = list(dict.fromkeys(loss.reason for loss in stage.lost))
            more = f" (and {len(reasons) - 1} other reasons)" if len(reasons) > 1 else ""
            rows.append([stage.name, str(stage.left), str(len(stage.lost)), reasons[0] + more])
    rows.append(["fits", str(one.fits), "", ""])
    return rows
