"""`dra-driver demo`: run the driver from end to end on this machine.

In: example files. Out: what was published, which device each claim got and why, what containers see, and whether
everything was removed afterwards. The agent is the real one; the API, the kubelet and the scheduling are embedded.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

import dra_driver
from dra_driver.cli.output import console, print_text, write_document
from dra_driver.model.errors import ExitCode, InputError, UsageError
from dra_driver.model.wire import Wire

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
@click.option("--profile", default=PROFILE, show_default=True, metavar="NAME-OR-FILE", help="the simulated node")
@click.option(
    "--mig",
    type=click.Choice(list(_SHIPPED)),
    default="dynamic",
    show_default=True,
    help="passed on to the agent's flag of the same name",
)
@click.option("--output", "-o", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
@click.option("--mending", is_flag=True, help="instead of the examples: a GPU needs a reset, gets it and is used again")
def demo_command(examples: Path | None, profile: str, mig: str, output: str, *, mending: bool) -> int:
    """Run the driver from end to end, without a GPU and without a cluster.

    \b
    dra-driver demo
    dra-driver demo --mending
    dra-driver demo --examples my-claims/ --profile dgx-a100

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
    from dra_driver.cli.demo.report import demo_document

    signal.signal(signal.SIGTERM, _end)  # the agent started below must not outlive this process
    if mending:
        from dra_driver.cli.demo.faulty_gpu import show_remediation

        if output != "table":
            raise UsageError("mending", "--mending writes no document for programs", hint="leave out --output")
        return ExitCode.OK if show_remediation(console(), profile) else ExitCode.NO_MATCH
    started = time.monotonic()
    folders = [examples] if examples else [_folder(f"examples/{name}") for name in _SHIPPED[mig]]
    out = console(is_quiet=output != "table")
    reports, problems = _run_all(out, folders, profile, mig)
    good, took = sum(one.is_good for one in reports), time.monotonic() - started
    left = "".join(f"; {problem}" for problem in problems)
    out.print(f"{good} of {len(reports)} examples came out as their files say{left}. {took:.1f} s")
    if output != "table":
        write_document(demo_document(reports, problems), output)
    return ExitCode.OK if good == len(reports) and not problems else ExitCode.NO_MATCH


def _run_all(out: Any, folders: list[Path], profile: str, mig: str) -> tuple[list[Any], list[str]]:
    """Run every example, each group on a node of its own; return the reports, and what else went wrong."""
    from dra_driver.embedded.examples.reading import load_examples

    reports: list[Any] = []
    problems: list[str] = []
    for group in _groups(folders):
        files = [example for folder in group for example in load_examples(folder)]
        node = _node(group[0], profile, mig)
        print_text(out, f": {node.profile.about}", bold=f"dra-driver {dra_driver.__version__} demo")
        status: int | None = None
        try:
            reports += _run(out, node, files)
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
    from dra_driver.embedded.node import EmbeddedNode

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
    from dra_driver.documents.yaml_values import load_yaml
    from dra_driver.embedded.examples.reading import text_of

    (given,) = list(load_yaml(text_of(path))) if path.exists() else [{}]
    return {f"--{name}": str(value) for name, value in given.items()}


def _run(out: Any, node: Any, files: list[Any]) -> list[Any]:
    """Start the node, run every example, and return their reports."""
    from dra_driver.cli.demo.report import show_ending, show_example, show_published

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
            show_example(out, next(stages), with_document=number == 1)
            report = next(stages)
            show_ending(out, report)
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
    from dra_driver.embedded.examples.reading import load_objects, text_of

    return [wire for path in sorted(folder.glob("*.yaml")) for wire in load_objects(path, text_of(path))]
