"""`dra-driver explain`: why a claim or pod fits or does not, node by node.

In: objects of a live cluster, or of files. Out: one sentence, then a funnel for each node and request. It only reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from dra_driver.cli.inputs.access import access_of, access_options
from dra_driver.cli.inputs.mig_option import mig_option
from dra_driver.cli.output import Column, console, print_code, print_text, show_table, write_document
from dra_driver.model.errors import InputError, UsageError
from dra_driver.views.wording import folded, plural

if TYPE_CHECKING:
    from dra_driver.allocation.explaining.explanation import AllocationExplanation, NodeExplanation
    from dra_driver.allocation.explaining.funnel import Funnel
    from dra_driver.model.wire import Wire
    from dra_driver.views.access import ClusterAccess
    from dra_driver.views.worlds.explanations import Explained
    from dra_driver.views.worlds.world import World

MAX_NODES = 8  # the most nodes that are shown in full


@click.command(name="explain")
@click.argument("words", nargs=-1, metavar="[KIND [NAME] | KIND/NAME]")
@click.option("-f", "--file", "files", multiple=True, metavar="FILE", help="Claims, templates, pods, workloads, nodes.")
@click.option("--slices", multiple=True, metavar="FILE", help="ResourceSlices (kubectl get resourceslices -o yaml).")
@click.option("--fleet", "profiles", multiple=True, metavar="PROFILE[=N]", help="Simulated nodes instead of slices.")
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
    from dra_driver.cli.inputs.progress import TerminalProgress
    from dra_driver.cli.inputs.worlds import apply_options, print_unseen
    from dra_driver.views.worlds.advice import advised
    from dra_driver.views.worlds.explanations import exit_code, explanations_document
    from dra_driver.views.worlds.rules import headline
    from dra_driver.views.worlds.subject_explainer import SubjectExplainer
    from dra_driver.views.worlds.subjects import is_one_object, subjects_of

    asked = _asked_words(words, given)
    access = None if given["files"] or given["slices"] or given["profiles"] else access_of(given)
    namespace = access.home if access else given["namespace"]
    world = _world(given, access, asked, namespace)
    rules = apply_options(world, given, given["profiles"])
    world.complete()
    selected = _selected(given, namespace if access else "")
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
    from dra_driver.cli.inputs.worlds import read_world
    from dra_driver.views.worlds.cluster_workloads import add_cluster_workload

    world = read_world([*given["files"], *given["slices"]], given)
    if access and len(asked) == 2:
        add_cluster_workload(world, access, asked, namespace)
    return world


def _selected(given: dict[str, Any], namespace: str) -> Callable[[Wire], bool]:
    """Return a predicate for the objects that -n, -A and -l select; `namespace` is the default, "" stands for all."""
    from dra_driver.views.labels import label_selector

    has_labels = label_selector(given["labels"])
    named = "" if given["everywhere"] else given["namespace"] or namespace

    def selected(wire: Wire) -> bool:
        return has_labels(wire) and named in {"", wire["metadata"].get("namespace") or "default"}

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
    from dra_driver.views.worlds.cluster_workloads import last_event

    return partial(last_event, access)


def show_all(explained: Sequence[Explained], headline: str, *, is_cluster: bool) -> None:
    """Print the explanations, one after the other."""
    from dra_driver.views.worlds.advice import WRITE

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
            _show(out, explanation)


def _show(out: Any, explanation: AllocationExplanation) -> None:
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
    for one in node.funnels:
        alike.setdefault((one.claim, one.wants, *map(tuple, _rows(one))), []).append(one)
    columns = [Column("stage"), Column("left", is_number=True), Column("lost", is_number=True), Column("why")]
    for funnels in alike.values():
        first = funnels[0]
        wants = "all" if first.wants is None else str(first.wants)
        names = ", ".join(one.request for one in funnels)
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
