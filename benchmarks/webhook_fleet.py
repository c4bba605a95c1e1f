"""The webhook as a separate process; its API server has the slices of 10,000 nodes with MIG partitions on demand.

The server generates its pages when they are asked for, and on request reports a change of every slice. Measured is the
peak of the process's resident memory (VmHWM): while the list is read, and when everything has changed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import multiprocessing
import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from benchmarks.figures import Report
from dra_driver.controller.layout import lay_out
from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated import SimulatedHardware
from dra_driver.inventory.build import build_inventory
from dra_driver.inventory.mig.partitions import MigPolicy
from dra_driver.inventory.wire import counter_set_wire, device_wire
from dra_driver.model.names import NVIDIA_DRIVER
from dra_driver.webhook.certificates import make_pair

NODES = 10_000
NAME = "localhost"
_NODE = "node-of-the-fleet"
_LONGEST_SECONDS = 1800.0


def run(report: Report) -> None:
    """Read the list of the fleet, and follow a rollout that changes every slice."""
    attribute = f'device.attributes["{NVIDIA_DRIVER}"]'
    nothing = f'{attribute}.productName == "nothing"'
    older = f'{attribute}.driverVersion.compareTo(semver("581.0.0")) < 0'  # true before the rollout
    with webhook(NODES) as running:
        seconds = running.until_it_knows(f"none of the {running.devices} devices", review_of(nothing))
        fleet = f"{NODES} nodes cut on demand, {running.devices} devices"
        peak = running.mib("VmHWM")
        report.add(f"webhook: list of {fleet}", seconds, "s")
        report.add(f"webhook: list of {fleet}, work", running.cpu_seconds(), "s CPU", budget=200.0)
        report.add(f"webhook: list of {fleet}, peak of memory", peak, "MiB", budget=96.0)
        running.change_all()
        running.until_it_knows(f"none of the {running.devices} devices", review_of(older))
        report.add("webhook: every slice changed, growth of the peak", running.mib("VmHWM") - peak, "MiB", budget=4.0)


class Fleet:
    """The slices of many equal nodes, which differ in names and UUIDs as real ones do."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        hardware = SimulatedHardware("dgx-h100", Roots(), node_name=_NODE)
        inventory = build_inventory(hardware.discover(), MigPolicy(is_dynamic=True))
        self.devices = len(inventory.devices)
        specs = lay_out(
            map(device_wire, inventory.devices), pool=_NODE, node=_NODE, driver=NVIDIA_DRIVER, server_minor=36,
            counter_sets=[counter_set_wire(*item) for item in inventory.offering.counter_sets.items()],
        )  # fmt: skip
        self.texts = [json.dumps(spec.wire(1, len(specs)), separators=(",", ":")) for spec in specs]
        self.uuids = sorted(set(re.findall(r"(?:GPU|MIG)-[0-9a-f-]{36}", "".join(self.texts))))
        self.size = nodes * len(self.texts)

    def slice_text(self, number: int, version: int) -> str:
        """Return the JSON text of one slice."""
        node, index = divmod(number, len(self.texts))
        name, text = f"node-{node}", self.texts[index].replace(_NODE, f"node-{node}")
        for at, uuid in enumerate(self.uuids):
            if uuid in text:
                text = text.replace(uuid, f"{uuid[:4]}{node:08x}-0000-0000-0000-{at:012x}")
        if version > 1:
            text = text.replace('"generation":1', f'"generation":{version}').replace(
                "580.126.20", f"{580 + version}.126.20"
            )
        uid = f"{number:08x}-0000-4000-8000-{number:012x}"
        metadata = f'{{"name":"{name}-{index}","uid":"{uid}","resourceVersion":"{version}"}}'
        return f'{{"metadata":{metadata},"spec":{text}}}'


def serve(process: Connection, nodes: int) -> None:
    """Run the API server. Every message on the pipe makes all slices change once more."""
    fleet, state = Fleet(nodes), {"version": 1}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            if url.path == "/version":
                self._whole('{"major":"1","minor":"36","gitVersion":"v1.36.0"}')
            elif query.get("watch"):
                self._watch(is_slices=url.path.endswith("resourceslices"))
            elif url.path.endswith("resourceslices"):
                self._page(int(query.get("limit") or fleet.size), int(query.get("continue") or 0))
            else:
                selectors = [{"cel": {"expression": f'device.driver == "{NVIDIA_DRIVER}"'}}]
                found = {"metadata": {"name": NVIDIA_DRIVER, "resourceVersion": "1"}, "spec": {"selectors": selectors}}
                self._whole(json.dumps({"metadata": {"resourceVersion": "1"}, "items": [found]}))

        def _page(self, limit: int, begin: int) -> None:
            end = min(begin + limit, fleet.size)
            token = f',"continue":"{end}"' if end < fleet.size else ""
            items = ",".join(fleet.slice_text(number, 1) for number in range(begin, end))
            self._whole(f'{{"metadata":{{"resourceVersion":"1"{token}}},"items":[{items}]}}')

        def _watch(self, *, is_slices: bool) -> None:
            self.send_response_only(200)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.flush()
            said = 1
            while True:
                if is_slices and state["version"] > said:
                    said += 1
                    for number in range(fleet.size):
                        self.wfile.write(f'{{"type":"MODIFIED","object":{fleet.slice_text(number, said)}}}\n'.encode())
                    self.wfile.flush()
                time.sleep(0.1)

        def _whole(self, text: str) -> None:
            body = text.encode()
            self.send_response_only(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    process.send((server.server_address[1], fleet.devices))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while process.recv():
        state["version"] += 1


class Webhook:
    """A `dra-driver webhook` process that uses such a server."""

    def __init__(self, nodes: int, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._api = context.Process(target=serve, args=(theirs, nodes), daemon=True)
        self._api.start()
        api_port, self.devices = self._ours.recv()
        self.devices *= nodes
        pair = make_pair((NAME,), datetime.now(UTC))
        (folder / "tls.crt").write_text(pair.certificate)
        (folder / "tls.key").write_text(pair.key)
        self.trust = ssl.create_default_context(cadata=pair.authorities)
        kubeconfig = folder / "kubeconfig"
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{api_port}"}}
        user = {"name": "u", "user": {"token": "t"}}
        current = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        config = {"clusters": [cluster], "users": [user], "contexts": [current], "current-context": "x"}
        kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **config}))
        self.port = _free_port()
        command = [sys.executable, "-m", "dra_driver", "webhook", "--address", f"127.0.0.1:{self.port}"]
        self.process = subprocess.Popen(
            [*command, "--tls-dir", str(folder), "--kubeconfig", str(kubeconfig)],
            stderr=(folder / "log").open("w"), env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip

    def change_all(self) -> None:
        """Make every slice change."""
        self._ours.send(True)

    def ask(self, path: str, review: bytes, timeout_s: float = 30.0) -> dict[str, Any]:
        """Send one review and return the answer. Raises: OSError, HTTPException."""
        connection = http.client.HTTPSConnection(NAME, self.port, context=self.trust, timeout=timeout_s)
        try:
            connection.request("POST", path, review)
            answer: dict[str, Any] = json.loads(connection.getresponse().read())["response"]
            return answer
        finally:
            connection.close()

    def mib(self, field: str) -> float:
        """Return VmRSS or VmHWM in MiB."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError(field)

    def cpu_seconds(self) -> float:
        """Return the CPU seconds that the process has used so far."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def until_it_knows(self, text: str, review: bytes) -> float:
        """Wait until a warning contains a text; return the seconds that it took."""
        began = time.perf_counter()
        while time.perf_counter() - began < _LONGEST_SECONDS:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if text in str(self.ask("/selectors", review)):
                    return time.perf_counter() - began
            if self.process.poll() is not None:
                raise RuntimeError(f"the webhook ended with {self.process.returncode}")
            time.sleep(0.2)
        raise RuntimeError(f"nothing said of {text}")

    def stop(self) -> None:
        """End both processes."""
        self.process.terminate()
        self.process.wait(20)
        self._api.terminate()
        self._api.join(10)


@contextlib.contextmanager
def webhook(nodes: int) -> Iterator[Webhook]:
    """Run a webhook over the fleet for the duration of a block."""
    with tempfile.TemporaryDirectory() as folder:
        running = Webhook(nodes, Path(folder))
        try:
            yield running
        finally:
            running.stop()


def review_of(*expressions: str, kind: str = "ResourceClaim") -> bytes:
    """Return a review of a claim with these selectors."""
    wanted = {
        "deviceClassName": NVIDIA_DRIVER,
        "selectors": [{"cel": {"expression": one}} for one in expressions],
    }
    obj = {
        "kind": kind,
        "metadata": {"name": "c"},
        "spec": {"devices": {"requests": [{"name": "a", "exactly": wanted}]}},
    }
    request = {"uid": "u-1", "kind": {"kind": kind}, "operation": "CREATE", "object": obj}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
