"""The offline tools on a live cluster: 10,000 nodes in a real etcd and API server, read page by page.

`python -m benchmarks.live_cluster [NODES]` writes the Nodes and a ResourceSlice of 8 GPUs for each, then measures every
command from the moment at which the last page of a list has been sent to it; a relay between both sees that. Needs the
components of `make cluster-binaries`.
"""

from __future__ import annotations

import http.client
import json
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from benchmarks.figures import Report
from benchmarks.program_run import run_program
from benchmarks.real_api import real_api
from dra_driver.kube import paths
from dra_driver.kube.api import KubeApi
from dra_driver.kube.credentials import load_credentials
from dra_driver.tools.world.world import World, add_profiles

VERSION = "1.35"
NODES, PROFILE = 10_000, "dgx-h100"
SECONDS, MEBIBYTES = 6.0, 800.0
_WRITERS = 8
_CLASSES = Path(__file__).parents[1] / "deviceclasses"
_EXPRESSION = 'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"'
_COMMANDS = {
    "explain": ("explain", "pod", "one"),
    "simulate one pod": ("simulate",),
    "slices": ("slices",),
    "cel test": ("cel", "test", "-e", _EXPRESSION),
}


def run(report: Report, nodes: int = NODES) -> None:
    """Measure each command."""
    with tempfile.TemporaryDirectory() as name, real_api(VERSION, Path(name)) as kubeconfig:
        fill(kubeconfig, nodes)
        with _relay(kubeconfig) as relay:
            for label, arguments in _COMMANDS.items():
                _measure(report, f"{label}, live cluster of {nodes:,} nodes x 8 GPUs", [*arguments], relay)


def fill(kubeconfig: Path, nodes: int) -> None:
    """Write the nodes, their slices, the shipped classes, and one pending pod with a claim for two GPUs."""
    world = World()
    add_profiles(world, [f"{PROFILE}={nodes}"])
    api = KubeApi(load_credentials(str(kubeconfig)))
    for file in sorted(_CLASSES.glob("*.yaml")):
        for one in yaml.safe_load_all(file.read_text()):
            api.request("POST", paths.CLASSES, body=one)
    _write_pod(api)
    writing = _NodeWriting(api, world)
    with ThreadPoolExecutor(_WRITERS) as pool:
        for future in [pool.submit(writing.run) for _ in range(_WRITERS)]:
            future.result()
    api.close()


def _write_pod(api: KubeApi) -> None:
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}]}}
    api.request("POST", paths.within(paths.CLAIMS, "default"), body={"metadata": {"name": "one"}, "spec": spec})
    account = {"metadata": {"name": "default"}}
    api.request("POST", "/api/v1/namespaces/default/serviceaccounts", body=account)
    container = {"name": "main", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}
    pod = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}], "containers": [container]}
    api.request("POST", paths.within(paths.PODS, "default"), body={"metadata": {"name": "one"}, "spec": pod})


class _NodeWriting:
    """The writing of a world's nodes and slices, by several threads at once."""

    def __init__(self, api: KubeApi, world: World) -> None:
        self.api = api
        self.rows = iter(world.of("ResourceSlice"))
        self.lock = threading.Lock()
        self.began, self.done = time.monotonic(), 0

    def run(self) -> None:
        """Write node after node until all are written."""
        while True:
            with self.lock:  # the devices of replicas are made one node at a time
                wire = next(self.rows, None)
                if wire is None:
                    return
                spec = {**wire["spec"], "devices": list(wire["spec"]["devices"])}
            self._write({**wire, "spec": spec})

    def _write(self, wire: dict[str, Any]) -> None:
        name = wire["spec"]["nodeName"]
        node = {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "spec": {}}
        self.api.request("POST", paths.NODES, body=node, timeout_s=60)
        body = {**wire, "apiVersion": "resource.k8s.io/v1"}
        self.api.request("POST", paths.SLICES, body=body, timeout_s=60)
        with self.lock:
            self.done += 1
            if self.done % 1000 == 0:
                speed = self.done / (time.monotonic() - self.began)
                print(f"  {self.done:,} nodes written, {speed:,.0f}/s", flush=True)


class _Relay:
    """Forwards requests to the API server. `pages` are those of lists so far, `last_at` when the last one had gone."""

    def __init__(self, kubeconfig: Path) -> None:
        wire = yaml.safe_load(kubeconfig.read_text())
        cluster, user = wire["clusters"][0]["cluster"], wire["users"][0]["user"]
        self.server = urlsplit(cluster["server"])
        self.headers = {"Authorization": f"Bearer {user['token']}", "Accept": "application/json"}
        self.tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self.pages, self.last_at = 0, 0.0
        self.local = threading.local()

    def forward(self, method: str, target: str, body: bytes | None, media: str) -> tuple[int, bytes]:
        if not hasattr(self.local, "connection"):
            host, port = self.server.hostname or "", self.server.port
            self.local.connection = http.client.HTTPSConnection(host, port, context=self.tls, timeout=60)
        headers = {**self.headers, **({"Content-Type": media} if media else {})}
        self.local.connection.request(method, target, body=body, headers=headers)
        answer = self.local.connection.getresponse()
        return answer.status, answer.read()


class _RelayServer(ThreadingHTTPServer):
    def __init__(self, relay: _Relay) -> None:
        super().__init__(("127.0.0.1", 0), _RelayedRequest)
        self.relay = relay


class _RelayedRequest(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise each body waits up to 40 ms until the header is acknowledged
    server: _RelayServer

    def _pass_on(self) -> None:
        relay = self.server.relay
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else None
        status, answer = relay.forward(self.command, self.path, body, self.headers.get("Content-Type", ""))
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        if "limit=" in self.path:
            relay.pages, relay.last_at = relay.pages + 1, time.monotonic()

    do_GET = do_POST = _pass_on  # noqa: N815 - as http.server wants it

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def _relay(kubeconfig: Path) -> Iterator[tuple[_Relay, Path]]:
    server = _RelayServer(_Relay(kubeconfig))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "relay", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "user", "user": {"token": "relay"}}],
        "contexts": [{"name": "relay", "context": {"cluster": "relay", "user": "user"}}],
        "current-context": "relay",
    }
    path = kubeconfig.with_name("relay.kubeconfig")
    path.write_text(json.dumps(config))
    try:
        yield server.relay, path
    finally:
        server.shutdown()
        server.server_close()


def _measure(report: Report, label: str, arguments: list[str], relay: tuple[_Relay, Path]) -> None:
    counts, kubeconfig = relay
    counts.pages = 0
    run = run_program([sys.executable, "-m", "dra_driver", *arguments, "--kubeconfig", str(kubeconfig)])
    if run.status not in {0, 1}:  # 1: there are findings
        raise RuntimeError(f"{label}: status {run.status}")
    report.add(f"{label}, after the last of {counts.pages} pages", run.ended - counts.last_at, "s", budget=SECONDS)
    report.add(f"{label}, all of it", run.seconds, "s")
    report.add(f"{label}, peak memory", run.peak_mib, "MiB", budget=MEBIBYTES)


def main() -> None:
    """Run as a program."""
    report = Report()
    run(report, *map(int, sys.argv[1:]))
    print("\n" + report.table())


if __name__ == "__main__":
    main()
