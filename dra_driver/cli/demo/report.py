"""The report of the demo.

In: slices and example reports. Out: lines and tables on a console.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from dra_driver.cli.device_table import show_devices
from dra_driver.cli.output import print_text
from dra_driver.embedded.examples.report import ClaimReport, ExampleReport
from dra_driver.embedded.kubelet.container_view import ContainerView
from dra_driver.embedded.scheduling.placement import Choice
from dra_driver.model.wire import SliceWire
from dra_driver.views.envelope import DocumentKind, OutputDocument
from dra_driver.views.wording import plural


def show_published(out: Any, slices: Sequence[SliceWire]) -> None:
    """Show the devices of the agent's slices as a table, in which the placements of a GPU share one row."""
    devices = [device for one in slices for device in one["spec"].get("devices") or []]
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


def show_ending(out: Any, report: ExampleReport) -> None:
    """Show whether the example ended as its file expects, and whether anything was left behind."""
    for text in report.unmet:
        print_text(out, f"✗ not as expected: {text}", indent=2, style="red")
    for text in report.left:
        print_text(out, f"✗ left behind: {text}", indent=2, style="red")
    if report.is_good:
        count = len(report.example.expects)
        met = "its expectation was met" if count == 1 else f"all {count} expectations were met"
        took = f"({1000 * report.took_s:.0f} ms)"
        print_text(out, f"✓ {met}; after unprepare nothing is left {took}", indent=2, style="green")


def demo_document(reports: Sequence[ExampleReport], problems: Sequence[str]) -> OutputDocument:
    """Return the document of a run: how each example ended, and what else went wrong."""
    rows = [
        {
            "file": one.example.path.name,
            "intent": one.example.intent,
            "isGood": one.is_good,
            "unmet": list(one.unmet),
            "left": list(one.left),
        }
        for one in reports
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
