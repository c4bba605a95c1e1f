"""`dra-driver demo`: run the driver from end to end on this machine.

In: example files. Out: what was published, which device each claim got and why, what containers see, and whether
everything was removed afterwards. The agent is the real one; the API, the kubelet and the scheduling are embedded.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click
import yaml

import dra_driver
from dra_driver.base.errors import ExitCode, InputError, UsageError
from dra_driver.base.wire import SliceWire, Wire
from dra_driver.hardware.simulated.profile import profile_path
from dra_driver.node.health.cases import Stage
from dra_driver.simulator.container_view import ContainerView
from dra_driver.simulator.example import ClaimReport, ExampleReport
from dra_driver.simulator.run import EmbeddedNode
from dra_driver.simulator.scheduler import Choice
from dra_driver.tools.output import console, print_text, show_devices, write_document
from dra_driver.tools.world.access import DocumentKind, OutputDocument
from dra_driver.tools.world.fields import plural

# The demo of a faulty GPU (`--mending`): how the agent handles it, from the fault until it is offered again.

SECONDS = 90.0
_STEP = re.compile(r" remediation device=(?P<gpu>\S+) .*step=(?P<stage>\S+)(?P<waits> reason=\"(?P<why>[^\"]*)\")?")
_MEANS = {
    Stage.DETECTED: "the driver asks for a reset",
    Stage.TAINTED: "no new claim gets the GPU",
    Stage.DRAIN_ASKED: "the agent would inform its pods now, and wait until they have ended",
    Stage.DRAINED: "no claim holds it, and no other node is being remediated",
    Stage.NVML_LET_GO: "the agent has closed the driver's library",
    Stage.ACTED: "the GPU was reset",
    Stage.SAME_UUID_FOUND: "the same GPU is there again",
    Stage.VALIDATED: "its readings are good, and it computes correctly",
    Stage.RETURNED: "it is offered again",
}


def show_remediation(out: Any, profile: str) -> bool:
    """Let a GPU of the profile need a reset; return whether it was offered again. Raises: InputError, NodeError."""
    folder = Path(tempfile.mkdtemp(prefix="dra-"))
    path = folder / "profile.yaml"
    try:
        pci = _write(profile, path, 0)
        flags = {"--remediation": "on", "--lease-namespace": "default"}
        node = EmbeddedNode(str(path), classes=(), mig="static", flags=flags)
        try:
            node.start()
            _write(profile, path, 1)
            print_text(out, f": GPU {pci} reports the recovery action 1, GPU reset", bold="A GPU becomes faulty")
            return _follow(out, node)
        finally:
            node.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(profile: str, path: Path, action: int) -> str:
    """Write the profile with a recovery action for its first whole GPU, and return the GPU's PCI address."""
    content = yaml.safe_load(profile_path(profile).read_text("utf-8"))
    whole = [gpu for gpu in content.get("gpus", ()) if "mig" not in gpu]
    if not whole:
        raise InputError("profile", f"{profile} has no whole GPU")
    whole[0]["health"] = {"recoveryAction": action}
    new = path.with_suffix(".new")
    new.write_text(yaml.safe_dump(content), "utf-8")
    new.replace(path)
    return str(whole[0]["pci"])


def _follow(out: Any, node: EmbeddedNode) -> bool:
    started = time.monotonic()
    for stage, text in _stages(node, started + SECONDS):
        print_text(out, f"{time.monotonic() - started:5.1f} s  {stage:<16} {text}", indent=2)
        if stage in (Stage.RETURNED, Stage.ESCALATED):
            return stage is Stage.RETURNED
    return False


def _stages(node: EmbeddedNode, deadline: float) -> Iterator[tuple[Stage, str]]:
    """Yield each stage once, as soon as the agent logs it, with its meaning."""
    seen: set[Stage] = set()
    while time.monotonic() < deadline:
        node.agent.check()
        for match in _STEP.finditer(node.agent.log.read_text(errors="replace")):
            stage = Stage(match["stage"])
            if stage not in seen:
                seen.add(stage)
                yield stage, _MEANS.get(stage, match["why"] or "")
        time.sleep(0.05)


# The report of the demo.


def show_published(out: Any, slices: Sequence[SliceWire]) -> None:
    """Show the devices of the agent's slices as a table, in which the placements of a GPU share one row."""
    devices = [device for slice_ in slices for device in slice_["spec"].get("devices") or []]
    pool = slices[0]["spec"]["pool"]["name"]
    title = f"published: {plural(len(devices), 'device')} in {plural(len(slices), 'ResourceSlice')}, pool {pool}"
    show_devices(out, title, sorted(devices, key=lambda one: str(one["name"])))


def show_example(out: Any, report: ExampleReport, *, with_document: bool = False) -> None:
    """Show an example while its pods run; `with_document` also prints the CDI files."""
    out.print()
    print_text(out, f"  {report.example.intent}", bold=report.example.path.name)
    for claim in report.claims:
        _show_claim(out, claim)
    for path in report.files:
        document = json.loads(path.read_text())
        print_text(
            out, f"CDI file {path.name} (cdiVersion {document['cdiVersion']}, kind {document['kind']})", indent=2
        )
        if with_document:
            print_text(out, json.dumps(document, indent=2), indent=4, style="dim")
    for pod in report.pods:
        if pod.failure:
            what = "can't start" if pod.is_placed else "stays pending"
            print_text(out, f"pod {pod.name} {what}: {pod.failure}", indent=2)
    for labels, view in _views(report):
        print_text(out, labels, indent=2)
        for line in _view_lines(view):
            print_text(out, line, indent=4)


def _views(report: ExampleReport) -> Iterator[tuple[str, ContainerView]]:
    """Yield each distinct view once, with the containers that have it."""
    seen: dict[ContainerView, list[str]] = {}
    for pod in report.pods:
        for name, view in pod.containers.items():
            seen.setdefault(view, []).append(f"{pod.name}/{name}")
    for view, names in seen.items():
        yield (f"container {names[0]} sees" if len(names) == 1 else f"containers {' and '.join(names)} see"), view


def show_in_brief(out: Any, report: ExampleReport) -> None:
    """Show an example in one line, followed by what was not as its file expects."""
    mark = "✓" if report.is_good else "✗"
    took = f"({1000 * report.took_s:.0f} ms)"
    print_text(out, f"  {report.example.intent} {took}", bold=f"{mark} {report.example.path.name}")
    _show_failures(out, report)


def show_ending(out: Any, report: ExampleReport) -> None:
    """Show whether the example ended as its file expects, and whether anything was left behind."""
    _show_failures(out, report)
    if report.is_good:
        count = len(report.example.expects)
        met = "its expectation was met" if count == 1 else f"all {count} expectations were met"
        took = f"({1000 * report.took_s:.0f} ms)"
        print_text(out, f"✓ {met}; after unprepare nothing is left {took}", indent=2, style="green")


def _show_failures(out: Any, report: ExampleReport) -> None:
    for text in report.unmet:
        print_text(out, f"✗ not as expected: {text}", indent=2, style="red")
    for text in report.left:
        print_text(out, f"✗ left behind: {text}", indent=2, style="red")


def demo_document(reports: Sequence[ExampleReport], problems: Sequence[str]) -> OutputDocument:
    """Return the document of a run: how each example ended, and what else went wrong."""
    rows = [
        {
            "file": report.example.path.name,
            "intent": report.example.intent,
            "isGood": report.is_good,
            "unmet": list(report.unmet),
            "left": list(report.left),
        }
        for report in reports
    ]
    return OutputDocument(DocumentKind.DEMO_RUN, {"examples": rows, "problems": list(problems)})


def _show_claim(out: Any, claim: ClaimReport) -> None:
    for request, group in groupby((held.choice for held in claim.held), key=lambda choice: choice.request):
        choices: list[Choice] = list(group)
        names = ", ".join(choice.id[2] for choice in choices)
        print_text(out, f"claim {claim.label}, request {request}: {names}", indent=2)
        print_text(out, f"why: {choices[0].reason}", indent=4)


def _view_lines(view: ContainerView) -> Iterator[str]:
    for title, items in (
        ("env", view.env),
        ("node", tuple(str(node) for node in view.device_nodes)),
        ("mount", tuple(f"{inside} (host {host})" for inside, host in view.mounts)),
        ("hook", view.hooks),
    ):
        for item in items:
            yield f"{title:<6}{item}"
    if not view.device_nodes:
        yield "no device node"


PROFILE = "demo-h100"
_SHIPPED = {  # the folders of examples, by the agent's --mig setting
    "dynamic": ("resourceclaims", "partitions-on-demand", "sharing", "vendors", "options"),
    "static": ("resourceclaims",),
}
_PACKAGE = Path(dra_driver.__file__).parent
_PLACES = (_PACKAGE, _PACKAGE.parent)  # installed from a wheel; in a checkout


@click.command(name="demo")
@click.option(
    "--examples",
    type=click.Path(path_type=Path),
    default=None,
    metavar="DIR",
    help="a folder with example files [default: those of the driver]",
)
@click.option(
    "--fleet",
    "--profile",
    "profile",
    default=PROFILE,
    show_default=True,
    metavar="NAME-OR-FILE",
    help="the simulated node",
)
@click.option(
    "--mig",
    type=click.Choice(list(_SHIPPED)),
    default="dynamic",
    show_default=True,
    help="passed on to the agent's flag of the same name",
)
@click.option("--output", "-o", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
@click.option("--verbose", "-v", is_flag=True, help="what each claim got, and why; what each container sees")
@click.option("--mending", is_flag=True, help="instead of the examples: a GPU needs a reset, gets it and is used again")
def demo_command(examples: Path | None, profile: str, mig: str, output: str, *, verbose: bool, mending: bool) -> int:
    """Run the driver from end to end, without a GPU and without a cluster.

    \b
    dra-driver demo
    dra-driver demo --verbose
    dra-driver demo --mending
    dra-driver demo --examples my-claims/ --fleet dgx-a100

    The node is simulated (8 x H100: an administrator has partitioned two of them, the agent partitions the others on
    demand). Its agent is the real one: it publishes ResourceSlices to an in-process Kubernetes API, and prepares claims
    for an embedded kubelet over unix sockets. Every file of the folder is run, and checked against the `# expect:`
    lines in its comments:

    \b
      pod NAME runs
      pod NAME stays pending[: TEXT IN THE REASON]
      claim CLAIM is refused[: TEXT IN THE REASON]
      claim CLAIM holds COUNT [where ATTRIBUTE=VALUE CAPACITY>=QUANTITY ...]
      claim CLAIM takes QUANTITY of CAPACITY
      claim CLAIM agrees on DOMAIN/ATTRIBUTE
      claim CLAIM says NAME=PATTERN in its status
      container POD/CONTAINER has COUNT node[s] PATTERN
      container POD/CONTAINER has env NAME=PATTERN
      container POD/CONTAINER reads NAME=PATTERN for REQUEST
      containers POD/CONTAINER POD/CONTAINER see the same|different nodes
      the node has label NAME=PATTERN

    Exit status 1: an example did not end as its file expects, or something was left behind.
    """  # noqa: D301
    signal.signal(signal.SIGTERM, _end)  # the agent started below must not outlive this process
    if mending:
        if output != "table":
            raise UsageError("mending", "--mending writes no document for programs", hint="leave out --output")
        return ExitCode.OK if show_remediation(console(), profile) else ExitCode.NO_MATCH
    started = time.monotonic()
    folders = [examples] if examples else [_folder(f"examples/{name}") for name in _SHIPPED[mig]]
    out = console(is_quiet=output != "table")
    reports, problems = _run_all(out, folders, profile, mig, is_verbose=verbose)
    good, took = sum(report.is_good for report in reports), time.monotonic() - started
    left = "".join(f"; {problem}" for problem in problems)
    out.print(f"{good} of {len(reports)} examples came out as their files say{left}. {took:.1f} s")
    if output != "table":
        write_document(demo_document(reports, problems), output)
    return ExitCode.OK if good == len(reports) and not problems else ExitCode.NO_MATCH


def _run_all(out: Any, folders: list[Path], profile: str, mig: str, *, is_verbose: bool) -> tuple[list[Any], list[str]]:
    """Run every example, each group on a node of its own; return the reports, and what else went wrong."""
    from dra_driver.simulator.example import load_examples

    reports: list[Any] = []
    problems: list[str] = []
    for group in _groups(folders):
        files = [example for folder in group for example in load_examples(folder)]
        node = _node(group[0], profile, mig)
        print_text(out, f": {node.profile.about}", bold=f"dra-driver {dra_driver.__version__} demo")
        status: int | None = None
        try:
            reports += _run(out, node, files, is_verbose=is_verbose)
        finally:
            status = node.stop()
        if status:
            problems.append(f"the agent ended with status {status}")
    return reports, problems


def _groups(folders: list[Path]) -> list[list[Path]]:
    """Group the folders whose examples run on the same node; a folder that describes its own node is a group."""
    own = [folder for folder in folders if (folder / "node").is_dir()]
    usual = [folder for folder in folders if folder not in own]
    return [group for group in (usual, *([folder] for folder in own)) if group]


def _node(folder: Path, profile: str, mig: str) -> Any:
    """Make the node for a folder of examples: the one that the folder describes, if there is one."""
    from dra_driver.simulator.run import EmbeddedNode

    own, sharing = folder / "node" / "profile.yaml", folder / "node" / "rules.yaml"
    flags, passed = folder / "node" / "flags.yaml", folder / "node" / "gpus.yaml"
    return EmbeddedNode(
        str(own) if own.exists() else profile,
        classes=_classes(_folder("deviceclasses")),
        mig=mig,
        sharing=sharing if sharing.exists() else None,
        flags=_flags(flags) | ({"--passthrough": str(passed)} if passed.exists() else {}),
    )


def _flags(path: Path) -> dict[str, str]:
    """Return the agent's flags from a folder's file; none without the file. Raises: InputError."""
    from dra_driver.base.text.yaml_values import load_yaml
    from dra_driver.simulator.example import text_of

    (given,) = list(load_yaml(text_of(path))) if path.exists() else [{}]
    return {f"--{name}": str(value) for name, value in given.items()}


def _run(out: Any, node: Any, files: list[Any], *, is_verbose: bool) -> list[Any]:
    """Start the node, run every example, and return their reports."""
    with out.status("starting") as status:

        def progress(text: str) -> None:
            status.update(text)
            out.print(f"  {text} …", style="dim")

        started = time.monotonic()
        node.start(progress)
        took = time.monotonic() - started
        memory = node.agent.resident_mib()
        out.print(f"  the agent is ready after {took:.1f} s (process {node.agent.pid}, {memory:.0f} MiB)")
        show_published(out, node.slices())
        runner, reports = node.runner(), []
        for number, example in enumerate(files, 1):
            status.update(f"example {number} of {len(files)}: {example.path.name}")
            stages = runner.run(example)
            running = next(stages)
            if is_verbose:
                show_example(out, running, with_document=number == 1)
            report = next(stages)
            (show_ending if is_verbose else show_in_brief)(out, report)
            reports.append(report)
    return reports


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _folder(name: str) -> Path:
    for place in _PLACES:
        if (place / name).is_dir():
            return place / name
    raise InputError(
        "no-folder", f"there is no folder {name} beside or in {_PACKAGE}", hint="install the package again"
    )


def _classes(folder: Path) -> list[Wire]:
    from dra_driver.simulator.example import load_objects, text_of

    return [wire for path in sorted(folder.glob("*.yaml")) for wire in load_objects(path, text_of(path))]
