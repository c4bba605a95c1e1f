"""Demo report: what a person is shown of the demo.

In: slices and example reports. Out: lines and tables on a console.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from dra_driver.embedded.container_view import ContainerView
from dra_driver.embedded.example_run import ClaimReport, ExampleReport
from dra_driver.embedded.first_fit import Choice
from dra_driver.model.wire import DeviceWire, SliceWire

_GOOD, _BAD = "[green]✓[/]", "[red]✗[/]"


def show_published(out: Any, slices: Sequence[SliceWire]) -> None:
    """Show the devices of the agent's slices as a table."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    devices = [device for one in slices for device in one["spec"].get("devices") or []]
    pool = slices[0]["spec"]["pool"]["name"]
    title = f"published: {len(devices)} devices in {len(slices)} ResourceSlice{'s' * (len(slices) != 1)}, pool {pool}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column, names in _COLUMNS:
        table.add_column(column, justify="right" if "memory" in names else "left", no_wrap=True)
    for device in devices:
        table.add_row(*(_cell(device, names) for _, names in _COLUMNS))
    out.print(table)


_COLUMNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("device", ("name",)),
    ("type", ("type",)),
    ("product", ("productName",)),
    ("profile", ("profile",)),
    ("memory", ("memory",)),
    ("compute", ("cudaComputeCapability",)),
    ("NUMA", ("numaNode",)),
    ("PCIe root", ("resource.kubernetes.io/pcieRoot",)),
)


def _cell(device: DeviceWire, names: tuple[str, ...]) -> str:
    for name in names:
        if name == "name":
            return str(device["name"])
        if name in (device.get("capacity") or {}):
            return str(device["capacity"][name]["value"])
        if name in (device.get("attributes") or {}):
            return str(next(iter(device["attributes"][name].values())))
    return ""


def show_example(out: Any, report: ExampleReport, *, with_document: bool = False) -> None:
    """Show an example while its pods run; `with_document` also prints the CDI files."""
    out.print()
    out.print(f"[bold]{report.example.path.name}[/]  {report.example.intent}")
    for claim in report.claims:
        for line in _claim_lines(claim):
            out.print(f"  {line}")
    for path in report.files:
        document = json.loads(path.read_text())
        out.print(f"  CDI file {path.name} (cdiVersion {document['cdiVersion']}, kind {document['kind']})")
        if with_document:
            out.print(textwrap.indent(json.dumps(document, indent=2), "    "), style="dim", markup=False)
    for pod in report.pods:
        if pod.failure:
            what = "can't start" if pod.is_placed else "stays pending"
            out.print(f"  pod {pod.name} {what}: {pod.failure}", markup=False)
    for labels, view in _views(report):
        out.print(f"  {labels}", markup=False)
        for line in _view_lines(view):
            out.print(f"    {line}", markup=False)


def _views(report: ExampleReport) -> Iterator[tuple[str, ContainerView]]:
    """Give each view once, with the containers that have it."""
    seen: dict[ContainerView, list[str]] = {}
    for pod in report.pods:
        for name, view in pod.containers.items():
            seen.setdefault(view, []).append(f"{pod.name}/{name}")
    for view, names in seen.items():
        yield (f"container {names[0]} sees" if len(names) == 1 else f"containers {' and '.join(names)} see"), view


def show_ending(out: Any, report: ExampleReport) -> None:
    """Show whether the example came out as its file says, and whether anything is left of it."""
    for text in report.unmet:
        out.print(f"  {_BAD} not as expected: ", end="")
        out.print(text, markup=False)
    for text in report.left:
        out.print(f"  {_BAD} left behind: ", end="")
        out.print(text, markup=False)
    if report.is_good:
        count = len(report.example.expects)
        met = "its expectation was met" if count == 1 else f"all {count} expectations were met"
        out.print(f"  {_GOOD} {met}; after unprepare nothing is left ({1000 * report.took_s:.0f} ms)")


def _claim_lines(claim: ClaimReport) -> Iterator[str]:
    for request, group in groupby((held.choice for held in claim.held), key=lambda choice: choice.request):
        choices: list[Choice] = list(group)
        names = ", ".join(f"[cyan]{choice.id[2]}[/]" for choice in choices)
        yield f"claim {claim.label}, request {request}: {names}"
        yield f"  why: {choices[0].reason}"


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
