"""Example run: one example, from creating its objects until nothing of it is left; and the node on which it runs.

In: an example and a running node. Out: a report: what each claim got and why, what each container sees, which
expectations were not met, and what was left behind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from types import MappingProxyType

import dra_driver
from dra_driver.base.errors import ApiError, DriverError, InputError, NodeError
from dra_driver.base.flags import FLAGS
from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.base.wire import DeviceWire, SliceWire, Wire
from dra_driver.hardware.simulated import load_profile
from dra_driver.kube.api import KubeApi
from dra_driver.kube.credentials import load_credentials
from dra_driver.node.claims.metadata import CONTAINER_FOLDER, DescribedDevice, read_metadata
from dra_driver.node.mps.client import MpsClient, socket_path
from dra_driver.simulator.api_server import Api, EmbeddedApi
from dra_driver.simulator.container_view import ContainerView
from dra_driver.simulator.example import ChosenDevice, ClaimReport, Example, ExampleReport, PodReport, mismatch
from dra_driver.simulator.foreign_plugin import ForeignPlugin, publish_slice
from dra_driver.simulator.kubelet import EmbeddedKubelet
from dra_driver.simulator.scheduler import EmbeddedScheduler, claim_name, end_pod, make_claims
from dra_driver.simulator.sentences import ClaimStatusHas, NodeHasLabel
from dra_driver.simulator.store import CLAIMS, PODS, SLICES, kind_of
from dra_driver.simulator.value_rules import refusal

# Agent process: the real agent as a child process, with its log in a file.

_LOG_LINES = 15


class AgentProcess:
    """`dra-driver agent` with the given flags.

    Environment variables that set flags are removed from its environment, so that the caller's do not reach it.
    """

    def __init__(self, flags: Mapping[str, str], log: Path, *, command: Sequence[str] = ()) -> None:
        self._command = [
            *(command or (sys.executable, "-m", "dra_driver", "agent")),
            *(word for name, value in flags.items() for word in (name, value)),
        ]
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id; 0 before the start."""
        return self._process.pid if self._process else 0

    def start(self) -> None:
        """Start the process."""
        environment = {k: v for k, v in os.environ.items() if k not in {flag.variable for flag in FLAGS}}
        package_root = str(Path(dra_driver.__file__).parent.parent)
        paths = [package_root, *environment.get("PYTHONPATH", "").split(os.pathsep)]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=environment)

    def check(self) -> None:
        """Check that the process has not ended. Raises: NodeError("node.agent-died") with the last lines of its log."""
        status = self._process.poll() if self._process else None
        if status is not None:
            raise NodeError("agent-died", f"the agent ended with status {status}", hint=self.last_lines())

    def last_lines(self) -> str:
        """Return the last lines of the log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n  ".join(["its last lines:", *lines[-_LOG_LINES:]])

    def stop(self, timeout_s: float = 10.0) -> int:
        """Ask the process to end, as the kubelet would, and kill it after `timeout_s` seconds.

        Return its exit status.
        """
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """Kill the process at once. Return its exit status (-9)."""
        if self._process is None:
            return 0
        self._process.kill()
        return self._process.wait(10)

    def resident_mib(self) -> float:
        """Return the resident memory of the process in MiB; 0 if it can't be read."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return 0.0
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def wait(self, timeout_s: float) -> int:
        """Wait for the process to end, and return its exit status.

        Raises: NodeError("node.agent-hangs") if it is still running after `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        try:
            return self._process.wait(max(0.0, deadline - time.monotonic())) if self._process else 0
        except subprocess.TimeoutExpired:
            raise NodeError("agent-hangs", f"the agent did not end within {timeout_s:g} s") from None


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
            if any(isinstance(expectation.meaning, NodeHasLabel) for expectation in example.expects):
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
            if any(claim.name == placement.claim for claim in report.claims):
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
            (slice_["spec"]["driver"], slice_["spec"]["pool"]["name"], device["name"]): device
            for slice_ in slices
            for device in slice_["spec"].get("devices") or []
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
            values |= {condition["type"]: condition["status"] for condition in entry.get("conditions") or ()}
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


# Node: a whole embedded node with API, kubelet, scheduler, foreign drivers, and the real agent as a child process.

READY_SECONDS = 40.0  # an idle machine needs one second, a busy one more
_DAEMON_SECONDS = 5.0
_SOCKET_ROOM = 40  # the longest path of a temporary folder, in characters, below which our sockets' paths still fit


class EmbeddedNode:
    """One node. `classes` are the DeviceClasses to create, and `mig` is the value of the agent's flag --mig.

    `sharing` is a sharing configuration: the agent is started with it, and an MPS supervisor runs beside the agent.
    `flags` are further flags of the agent, by name. In tests, `command` replaces the agent's command line.
    """

    def __init__(
        self,
        profile: str,
        *,
        classes: Sequence[Wire],
        version: str = "1.36",
        mig: str = "dynamic",
        sharing: Path | None = None,
        flags: Mapping[str, str] = MappingProxyType({}),
        command: Sequence[str] = (),
    ) -> None:
        self.profile = load_profile(profile)
        self.name = self.profile.node_name_of(0)
        self.driver = NVIDIA_DRIVER
        self.folder = _short_folder()
        self.api = EmbeddedApi(version=version)
        self._classes = classes
        self._version = version
        self._kube: KubeApi | None = None
        self._kubeconfig = self.folder / "kubeconfig"
        self._foreign: list[ForeignPlugin] = []
        self.kubelet = EmbeddedKubelet(self.folder, self.api, node=self.name)
        both = {
            "--kubelet-plugins-directory-path": str(self.kubelet.plugins_dir),
            "--hardware": f"simulated:{profile}",
        }
        own = self._own_flags(mig, sharing) | both | dict(flags)
        self.agent = AgentProcess(own, self.folder / "agent.log", command=command)
        supervisor = (sys.executable, "-m", "dra_driver", "mps")
        self._mps = AgentProcess(both, self.folder / "mps.log", command=supervisor) if sharing else None

    def _own_flags(self, mig: str, sharing: Path | None) -> dict[str, str]:
        """Return the flags that tell the agent where its node is, and how it offers the GPUs."""
        return ({"--sharing-config": str(sharing)} if sharing else {}) | {
            "--mig": mig,
            "--node-name": self.name,
            "--kubeconfig": str(self._kubeconfig),
            "--cdi-root": str(self.kubelet.cdi_dir),
            "--kubelet-registrar-directory-path": str(self.kubelet.registrar_dir),
            "--feature-file": str(self.feature_file),
        }

    @property
    def feature_file(self) -> Path:
        """The path of the node's labels, where the agent writes them."""
        return self.folder / "features.d" / "dra-driver"

    @property
    def ledger(self) -> Path:
        """The path of the agent's ledger."""
        return self.kubelet.plugins_dir / self.driver / "ledger.db"

    def start(self, progress: Callable[[str], None] = lambda _: None, *, timeout_s: float = READY_SECONDS) -> None:
        """Start everything and wait until the node is ready. Raises: NodeError with what did not start."""
        progress("starting a Kubernetes API and a kubelet")
        self.api.start()
        self.api.write_kubeconfig(self._kubeconfig)
        self.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}})
        for wire in self._classes:
            self.api.create(wire)
        self._kube = KubeApi(load_credentials(str(self._kubeconfig)))
        self.kubelet.start()
        for foreign in self.profile.foreign:
            publish_slice(self._kube, foreign.driver, self.name, foreign.devices)
            plugin = ForeignPlugin(
                foreign.driver, registrar_dir=self.kubelet.registrar_dir, plugins_dir=self.kubelet.plugins_dir
            )
            plugin.start()
            self._foreign.append(plugin)
            self.kubelet.wait_registered(foreign.driver, timeout_s)
        if self._mps:
            progress("starting the MPS supervisor")
            self._mps.start()
        progress("starting the agent as a process of its own")
        self.agent.start()
        progress("waiting for its ResourceSlices and its registration")
        self._await_ready(time.monotonic() + timeout_s)

    def slices(self) -> list[SliceWire]:
        """Return the agent's slices."""
        return [item for item in self.api.items(SLICES) if item["spec"]["driver"] == self.driver]

    def runner(self) -> ExampleRunner:
        """Return a runner for examples on this node, over HTTP. Raises: NodeError before `start`."""
        if self._kube is None:
            raise NodeError("not-started", "the embedded node has not been started")
        scheduler = EmbeddedScheduler(self._kube, node=self.name, kubernetes=self._version)
        return ExampleRunner(self._kube, self.kubelet, scheduler, ledger=self.ledger, feature_file=self.feature_file)

    def stop(self) -> int:
        """Stop everything and remove the folder; return the agent's exit status, or the supervisor's if that is 0."""
        status = self.agent.stop()
        if self._mps:
            with suppress(DriverError):  # the daemons of an interrupted example would outlive their supervisor
                MpsClient(socket_path(self.ledger.parent)).stop_unused(
                    lambda _: nullcontext(True), deadline_s=_DAEMON_SECONDS
                )
            status = status or self._mps.stop()
        for plugin in self._foreign:
            plugin.stop()
        self.kubelet.stop()
        if self._kube is not None:
            self._kube.close()
        self.api.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        return status

    def _await_ready(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            self.agent.check()
            slices = self.slices()
            is_complete = bool(slices) and len(slices) == slices[0]["spec"]["pool"]["resourceSliceCount"]
            if is_complete and self.kubelet.plugins.plugins(self.driver):
                return
            time.sleep(0.02)
        errors = "; ".join(f"{path.name}: {text}" for path, text in self.kubelet.plugins.errors().items())
        what = f"slices: {len(self.slices())}, registered: {', '.join(self.kubelet.plugins.drivers())} {errors}"
        raise NodeError("not-ready", f"the agent was not ready in time ({what})", hint=self.agent.last_lines())


def _short_folder() -> Path:
    """Create a temporary folder whose path is short enough for unix sockets."""
    usual = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="dra-", dir=usual if len(usual) < _SOCKET_ROOM else "/tmp"))  # noqa: S108
