"""Example run: one example, from creating its objects until nothing of it is left.

In: an example and a running node. Out: a report: what each claim got and why, what each container sees, which
expectations were not met, and what was left behind.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from dra_driver.claims.reports.metadata import CONTAINER_FOLDER
from dra_driver.claims.reports.metadata_reading import DescribedDevice, read_metadata
from dra_driver.embedded.api.kinds import CLAIMS, PODS, SLICES, kind_of
from dra_driver.embedded.api.port import Api
from dra_driver.embedded.api_rules.quotas import refusal
from dra_driver.embedded.examples.expectations import mismatch
from dra_driver.embedded.examples.reading import Example
from dra_driver.embedded.examples.report import ChosenDevice, ClaimReport, ExampleReport, PodReport
from dra_driver.embedded.examples.sentences import ClaimStatusHas, NodeHasLabel
from dra_driver.embedded.kubelet.container_view import ContainerView
from dra_driver.embedded.kubelet.kubelet import EmbeddedKubelet
from dra_driver.embedded.pod_claims import claim_name
from dra_driver.embedded.scheduling.pods import end_pod, make_claims
from dra_driver.embedded.scheduling.scheduler import EmbeddedScheduler
from dra_driver.model.errors import ApiError, DriverError, InputError
from dra_driver.model.wire import DeviceWire, Wire

SETTLE_S = 5.0  # seconds after which nothing may be left of a claim


class ExampleRunner:
    """Runs examples on one node, one after the other."""

    def __init__(
        self, api: Api, kubelet: EmbeddedKubelet, scheduler: EmbeddedScheduler, *, ledger: Path, feature_file: Path
    ) -> None:
        self._api = api
        self._kubelet = kubelet
        self._scheduler = scheduler
        self._ledger, self._feature_file = ledger, feature_file

    def run(self, example: Example) -> Iterator[ExampleReport]:
        """Run one example. Yield its report twice: while its pods run, and after everything has been undone.

        Raises: InputError if the API refuses an object of the file.
        """
        started = time.monotonic()
        report = ExampleReport(example)
        running: list[Wire] = []
        made: list[Wire] = []
        try:
            self._create(example, made, report.refused)
            for pod in example.pods:
                self._start(self._read(pod), report, running)
            if any(isinstance(one.meaning, NodeHasLabel) for one in example.expects):
                report.labels = self._labels()
            asked = {one.meaning.claim for one in example.expects if isinstance(one.meaning, ClaimStatusHas)}
            for claim in (one for one in report.claims if one.label in asked):
                claim.device_status = self._device_status(claim)
            report.unmet = [
                f"line {s.line}: {s.text}: {why}" for s in example.expects if (why := mismatch(s.meaning, report))
            ]
            yield report
        finally:
            self._end(running, made, report)
        report.left = list(self._left(report))
        report.took_s = time.monotonic() - started
        yield report

    def _create(self, example: Example, made: list[Wire], refused: dict[str, str]) -> None:
        for wire in example.objects:
            kind = kind_of(wire)
            if kind is CLAIMS and (why := refusal(example.quotas, [m for m in made if kind_of(m) is CLAIMS], wire)):
                refused[wire["metadata"]["name"]] = why
                continue
            namespace = wire["metadata"].get("namespace", "default")
            try:
                made.append(self._api.request("POST", kind.path(namespace), body=wire))
            except ApiError as fault:
                raise InputError("example", f"{example.path}: {fault.message}") from fault

    def _read(self, pod: Wire) -> Wire:
        metadata = pod["metadata"]
        return self._api.request("GET", PODS.path(metadata.get("namespace", "default"), metadata["name"]))

    def _start(self, pod: Wire, report: ExampleReport, running: list[Wire]) -> None:
        """Create the pod's claims, place the pod and prepare its devices."""
        pod_report = PodReport(pod["metadata"]["name"])
        report.pods.append(pod_report)
        pod = make_claims(self._api, pod)
        running.append(pod)
        pod, placements = self._scheduler.schedule(pod)
        published = self._published()
        labels = {claim_name(pod, entry): _label(pod, entry) for entry in pod["spec"].get("resourceClaims") or []}
        for placement in placements:
            if any(known.name == placement.claim for known in report.claims):
                continue  # another pod uses the claim too, and the claim was reported there
            wire = self._api.request("GET", CLAIMS.path(pod["metadata"]["namespace"], placement.claim))
            held = tuple(ChosenDevice(choice, published[choice.id]) for choice in placement.outcome.choices)
            label, uid = labels[placement.claim], wire["metadata"]["uid"]
            namespace, refusal_text = wire["metadata"]["namespace"], placement.outcome.refusal
            report.claims.append(ClaimReport(label, placement.claim, namespace, uid, held, refusal_text))
        refusals = [f"{labels[p.claim]}: {p.outcome.refusal}" for p in placements if p.outcome.refusal]
        if refusals:
            pod_report.failure = "; ".join(refusals)
            return
        pod_report.is_placed = True
        try:
            self._kubelet.prepare_pod(pod)
            pod_report.containers = self._kubelet.containers(pod)
            pod_report.described = {name: tuple(_described(view)) for name, view in pod_report.containers.items()}
        except DriverError as fault:
            pod_report.failure = str(fault)

    def _published(self) -> dict[tuple[str, str, str], DeviceWire]:
        slices: list[Wire] = self._api.request("GET", SLICES.path())["items"]
        return {
            (one["spec"]["driver"], one["spec"]["pool"]["name"], device["name"]): device
            for one in slices
            for device in one["spec"].get("devices") or []
        }

    def _end(self, running: list[Wire], made: list[Wire], report: ExampleReport) -> None:
        """End every pod and delete every object; an error counts as something left behind."""
        for pod in reversed(running):
            try:
                self._kubelet.unprepare_pod(pod)
                end_pod(self._api, pod)
            except DriverError as fault:
                report.left.append(f"pod {pod['metadata']['name']}: {fault}")
        for wire in reversed(made):
            metadata = wire["metadata"]
            with contextlib.suppress(ApiError):  # the pods are gone already
                self._api.request("DELETE", kind_of(wire).path(metadata.get("namespace", ""), metadata["name"]))

    def _left(self, report: ExampleReport) -> Iterator[str]:
        """Yield what is left of the claims in the API, the CDI folder, the ledger and the kubelet."""
        yield from report.left
        still_there: list[Wire] = self._api.request("GET", CLAIMS.path())["items"]
        for wire in still_there:
            yield f"claim {wire['metadata']['name']} still exists"
        cached = {claim.ref.uid for claim in self._kubelet.cached_claims()}
        for claim in report.claims:
            if claim.uid in cached:
                yield f"the kubelet still holds claim {claim.label}"
            for path in (one for one in self._kubelet.cdi_dir.rglob("*") if one.is_file()):
                if claim.uid in path.name or claim.uid in path.read_text():
                    yield f"CDI file {path.name} of claim {claim.label}"
            for row in self._rows(claim.uid):
                yield f"ledger row {row} of claim {claim.label}"

    def _labels(self) -> dict[str, str]:
        """Wait for the node's feature file, and return the labels in it."""
        deadline = time.monotonic() + SETTLE_S
        while not self._feature_file.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        lines = self._feature_file.read_text().splitlines() if self._feature_file.exists() else []
        return dict(line.split("=", 1) for line in lines if not line.startswith("#"))

    def _device_status(self, claim: ClaimReport) -> dict[str, str]:
        """Wait for a claim's status.devices, and return the conditions and data in it as text."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            found = self._api.request("GET", CLAIMS.path(claim.namespace, claim.name))
            entries: list[Wire] = (found.get("status") or {}).get("devices") or []
            if entries or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        values: dict[str, str] = {}
        for entry in entries:
            values |= {one["type"]: one["status"] for one in entry.get("conditions") or ()}
            values |= {name: str(value) for name, value in (entry.get("data") or {}).items()}
        return values

    def _rows(self, uid: str) -> list[str]:
        """Return the tables that still mention a claim once the agent has had time to look at its pod's processes.

        The agent keeps a claim's devices back until it has seen that no container uses them any more.
        """
        deadline = time.monotonic() + SETTLE_S
        while (rows := ledger_rows(self._ledger, uid)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return rows


def _described(view: ContainerView) -> Iterator[DescribedDevice]:
    """Yield the devices described in the files of a container. Raises: InputError for a file that is not valid."""
    for inside, host in view.mounts:
        if inside.startswith(CONTAINER_FOLDER):
            yield from read_metadata(Path(host).read_bytes()).devices


def ledger_rows(ledger: Path, uid: str) -> list[str]:
    """Return the tables of a ledger that mention a claim. The file is searched whatever tables it has."""
    if not ledger.exists():
        return []
    with contextlib.closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return [
            table
            for table in tables
            for row in database.execute(f'SELECT * FROM "{table}"')  # noqa: S608  (names come from the file)
            if any(uid in str(cell) for cell in row)
        ]


def _label(pod: Wire, entry: Wire) -> str:
    if "resourceClaimTemplateName" in entry:
        return f"{pod['metadata']['name']}/{entry['name']}"
    return str(entry["resourceClaimName"])
