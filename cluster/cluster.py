"""A whole Kubernetes on this machine: `with Cluster() as c:`.

In: a Kubernetes version, gates on or off, a number of nodes. Out: an API server to talk to, nodes that run pods, the
driver's agent on any of them. The logs of all components are kept when the block ends with an exception. Nothing is
left behind, however the block ends; `Cluster.remains` finds what a killed owner left.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from cluster import control_plane, relay
from cluster.api import Api
from cluster.components import programs
from cluster.daemon import Daemon
from cluster.node import BRIDGE, Node
from cluster.pki import CLUSTER_IP, Authority
from cluster.sandbox import Sandbox, until

REPOSITORY = Path(__file__).resolve().parents[1]
# A registration socket's path is at least 60 bytes longer than the kubelet's folder, and at most 107 bytes in all.
PLACE = Path("/tmp")
PREFIX = "dra-"


class Cluster:
    """One cluster; several may exist at a time, each in its own sandbox.

    `resync` is how long a kubelet waits (and up to half as long again) before it retries a failed Prepare.
    `pod_security` is the level of namespaces that have no label of their own.
    """

    def __init__(
        self,
        *,
        version: str = "1.35",
        gates: bool = True,
        nodes: int = 1,
        name: str = "",
        resync: str = "1m0s",
        pod_security: str = "privileged",
    ) -> None:
        self.version = version
        self.gates = gates
        self._enabled = control_plane.gates_of(version) if gates else ()
        self.pod_security = pod_security
        self.programs = programs.require(version)
        root = PLACE / f"{PREFIX}{name}" if name else Path(tempfile.mkdtemp(prefix=PREFIX, dir=PLACE))
        self.sandbox = Sandbox(root)
        self.nodes = [
            Node(self.sandbox, self.programs, index + 1, gates=self._enabled, resync=resync) for index in range(nodes)
        ]
        self.api: Api
        self.kubeconfig: Path
        self.api_server: Daemon
        self.clients: list[Daemon] = []
        self.authority: Authority

    def __enter__(self) -> Cluster:
        self.sweep()
        try:
            (self.sandbox.root / "owner").write_text(process(os.getpid()))
            self.start()
        except BaseException:
            self.keep_logs()
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.keep_logs()
        self.stop()

    @property
    def keeps_gated(self) -> bool:
        """Return whether the fields behind feature gates are kept: the gates are on by default from 1.36."""
        return self.gates or self.version >= "1.36"

    @property
    def compares_other_devices(self) -> bool:
        """Return whether the scheduler compares the capacity of a device with that of another one, or crashes.

        With DRAConsumableCapacity, that of 1.34 takes a device's position in the request for that in its slice.
        Source: Kubernetes 1.34.4, allocator_experimental.go, allocateDevice.
        """
        return self.gates and self.version < "1.35"

    @property
    def repeats_devices(self) -> bool:
        """Return whether a kubelet names a device twice in a pod's status after a repeated Prepare.

        The API server refuses such a status: the pod's phase and readiness stay what they were. So it is with
        ResourceHealthStatus up to 1.35 (seen with 1.34.4 and 1.35.8; 1.36.4 forgets the devices first).
        """
        return self.gates and self.version < "1.36"

    def start(self) -> None:
        """Start everything and wait until every node is Ready."""
        started = time.monotonic()
        self.sandbox.create()
        self._addresses()
        self._identities()
        with concurrent.futures.ThreadPoolExecutor() as threads:
            runtimes = [threads.submit(node.start_runtime) for node in self.nodes]
            self._control_plane()
            for runtime in runtimes:
                runtime.result()
        for node in self.nodes:
            node.start_kubelet()
        for node in self.nodes:
            self.api.wait("Node", node.name, "", "Ready", _ready, seconds=90)
        until("the default ServiceAccount", lambda: self.api.find("ServiceAccount", "default", "default"), 60)
        _say(f"{self}: up in {time.monotonic() - started:.1f} s")

    def stop(self) -> None:
        """Take everything down; safe to repeat."""
        self.sandbox.destroy()
        Daemon.reap()

    def restart_api_server(self) -> None:
        """Start the API server again after an outage, and restart its clients.

        They would reconnect by themselves as well, but only a minute later, because they back off.
        """
        self.api_server.start()
        self.api_server.until("ready", self.api.ready, 90)
        for client in self.clients:
            client.kill()
            client.start()

    def keep_logs(self) -> Path | None:
        """Copy the components' logs out of the sandbox; return their folder."""
        logs = self.sandbox.root / "log"
        if not logs.is_dir():
            return None
        place = Path(os.environ.get("DRA_CLUSTER_LOGS") or REPOSITORY / "build" / "cluster-logs") / self.sandbox.name
        shutil.copytree(logs, place, dirs_exist_ok=True)
        _say(f"{self}: component logs kept in {place}")
        return place

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        """Run kubectl as the administrator.

        Raises: SubprocessError with kubectl's output.
        """
        command = [str(self.programs["kubectl"]), f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(command, check=False, input=stdin, capture_output=True, text=True, timeout=timeout)
        if done.returncode:
            raise subprocess.SubprocessError(f"kubectl {' '.join(arguments)}: exit {done.returncode}: {done.stderr}")
        return done.stdout

    def apply(self, *files: Path) -> list[dict[str, Any]]:
        """Apply manifests; return the objects in them."""
        for file in files:
            self.kubectl("apply", "-f", str(file))
        return [content for file in files for content in yaml.safe_load_all(file.read_text()) if content]

    def node_token(self, node: str, account: str, namespace: str) -> str:
        """Return a token of a ServiceAccount that is bound to a node, as a pod on that node would have it."""
        path = self.api.path("ServiceAccount", account, namespace) + "/token"
        bound = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": self.api.get("Node", node)["metadata"]["uid"]}
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 86400, "boundObjectRef": bound},
        }
        return str(self.api.call("POST", path, request)["status"]["token"])

    def node_kubeconfig(self, node: str, account: str, namespace: str) -> Path:
        """Write a kubeconfig with a node-bound token, for a process inside the sandbox."""
        token = self.node_token(node, account, namespace)
        return self.authority.kubeconfig(f"{account}-{node}", token, control_plane.SERVER)

    def audited(self, *verbs: str, resource: str = "resourceslices") -> list[dict[str, Any]]:
        """Return the finished requests of the driver's ServiceAccounts so far, in order."""
        log = self.sandbox.root / control_plane.AUDIT
        # The last line may not be complete yet.
        lines = log.read_text().split("\n")[:-1] if log.exists() else []
        events = [json.loads(line) for line in lines]
        return [
            event
            for event in events
            if event["stage"] == "ResponseComplete"
            and event["verb"] in verbs
            and event.get("objectRef", {}).get("resource") == resource
        ]

    @classmethod
    def sweep(cls) -> None:
        """Take down what killed test runs left; a cluster of `up` has no owner and stays."""
        for sandbox in cls.remains():
            if cls.is_orphan(sandbox):
                sandbox.destroy()

    @staticmethod
    def remains() -> list[Sandbox]:
        """Return the sandboxes that exist on this machine, including those of killed owners."""
        found = [root for root in PLACE.glob(f"{PREFIX}*") if (root / "owner").exists() or (root / "sysctls").exists()]
        return [Sandbox(root) for root in sorted(found)]

    @staticmethod
    def is_owned(sandbox: Sandbox) -> bool:
        """Return whether a sandbox belongs to a test run, whether or not it still runs."""
        return (sandbox.root / "owner").exists()

    @classmethod
    def is_orphan(cls, sandbox: Sandbox) -> bool:
        """Return whether the test run that a sandbox belongs to has ended."""
        if not cls.is_owned(sandbox):
            return False
        owner = (sandbox.root / "owner").read_text()
        return owner != process(int(owner.split()[0]))

    def _addresses(self) -> None:
        run = self.sandbox.run
        run("ip", "addr", "add", f"{CLUSTER_IP}/32", "dev", "lo")
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        for node in self.nodes:
            run("ip", "addr", "add", f"{node.address}/16", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        # The components look for a default route to find their host's address.
        run("ip", "route", "add", "default", "via", "10.88.0.254", "dev", BRIDGE)

    def _identities(self) -> None:
        authority = Authority(self.sandbox.root / "pki")
        names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
        addresses = ("127.0.0.1", CLUSTER_IP, self.nodes[0].address)
        served = ",".join([*(f"DNS:{name}" for name in names), *(f"IP:{address}" for address in addresses)])
        authority.issue("apiserver", "/CN=kube-apiserver", served)
        authority.issue("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client")
        for name, user, groups in (
            ("admin", "admin", ("system:masters",)),
            ("controller-manager", "system:kube-controller-manager", ()),
            ("scheduler", "system:kube-scheduler", ()),
            *((node.name, f"system:node:{node.name}", ("system:nodes",)) for node in self.nodes),
        ):
            authority.kubeconfig(name, authority.token(user, *groups), control_plane.SERVER)
        for node in self.nodes:
            authority.issue(node.name, f"/CN={node.name}", f"DNS:{node.name},IP:{node.address}")
        self.authority = authority

    def _control_plane(self) -> None:
        pki = self.sandbox.root / "pki"
        control_plane.etcd(self.sandbox, self.programs).start()
        self.api_server = control_plane.api_server(
            self.sandbox, self.programs, self.nodes[0].address, self._enabled, self.pod_security
        )
        self.api_server.start()
        address = self._relay()
        self.kubeconfig = self.authority.kubeconfig("admin", self.authority.tokens["admin"], address)
        self.api = Api(address, pki / "ca.crt", self.authority.tokens["admin"])
        self.api_server.until("ready", self.api.ready, 90)
        self.clients = [
            make(self.sandbox, self.programs, pki / f"{name}.kubeconfig", self._enabled).start()
            for make, name in (
                (control_plane.controller_manager, "controller-manager"),
                (control_plane.scheduler, "scheduler"),
            )
        ]

    def _relay(self) -> str:
        """Make the API server reachable from outside the namespace; return its address there."""
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listening:
            port = listening.getsockname()[1]
            descriptor = listening.fileno()
            argv = [sys.executable, relay.__file__, str(descriptor), "127.0.0.1", "443"]
            Daemon(self.sandbox, "relay", argv, keep=[descriptor]).start()
        return f"https://127.0.0.1:{port}"

    def __str__(self) -> str:
        gates = "gates on" if self.gates else "default gates"
        return f"Kubernetes {self.version}, {gates}, {len(self.nodes)} node(s), {self.sandbox.root}"


def process(pid: int) -> str:
    """Return a permanent name for a process: its number and its start time, because numbers are reused."""
    try:
        began = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        began = ""
    return f"{pid} {began}"


def _ready(node: dict[str, Any]) -> bool:
    conditions = {item["type"]: item["status"] for item in node.get("status", {}).get("conditions", [])}
    return conditions.get("Ready") == "True" and not node["spec"].get("taints")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
