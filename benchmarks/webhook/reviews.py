"""The admission webhook, in its own process on one core: reviews over TLS on connections that are kept open.

`python -m benchmarks --only webhook`. The fleet is 1000 nodes with 8 GPUs each; the claims are those of examples/, each
reviewed equally often.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import re
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import yaml

from benchmarks.figures import Report, percentiles
from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.base.wire import Wire
from dra_driver.tools.webhook.certificates import load_certificate_pair, make_certificate_pair
from dra_driver.tools.webhook.fleet import PublishedFleet
from dra_driver.tools.webhook.handler import Reviewer
from dra_driver.tools.webhook.linting import FleetLinter, ImageAdvisor
from dra_driver.tools.webhook.review import ReviewDeadline
from dra_driver.tools.webhook.server import ReviewServer, reviewers
from dra_driver.tools.world.fleet import fleet_of_profile

DRIVERS = (NVIDIA_DRIVER,)
NODES, GPUS = 1000, 8
REVIEWS, CLIENTS = 2000, 4
_ROOT = Path(__file__).parents[2]
_NAME = "localhost"


def run(report: Report) -> None:
    """Measure both paths: one client for the time of a review, several for the rate; then the process's memory."""
    forked = multiprocessing.get_context("spawn")
    ours, theirs = forked.Pipe()
    server = forked.Process(target=_serve, args=(theirs,), daemon=True)
    server.start()
    try:
        port, authorities, seconds = ours.recv()
        report.add(f"webhook: take in {NODES} nodes x {GPUS} GPUs", seconds, "s", budget=10.0)
        for path, reviews in (("/configs", _with_configs()), ("/selectors", _with_selectors())):
            _measure(report, _Server(ours, port, authorities), path, reviews)
        report.add("webhook: resident memory", _rss_mib(server.pid or 0), "MiB", budget=80.0)
    finally:
        server.terminate()
        server.join(10)


@dataclass(frozen=True, slots=True)
class _Server:
    """The server's address, and the pipe for questions about the process."""

    process: Connection
    port: int
    authorities: str

    def cpu_seconds(self) -> float:
        """Return the CPU seconds that the server has used so far."""
        self.process.send("cpu")
        return float(self.process.recv())

    def judged(self) -> list[float]:
        """Return the CPU seconds of its thread for each review since the last call."""
        self.process.send("judged")
        return list(self.process.recv())


def _measure(report: Report, server: _Server, path: str, reviews: list[bytes]) -> None:
    # When even an empty answer is late, the machine is busy with something else, and a late review means nothing.
    _, _, idle = percentiles(_ask(server, "/healthz", []))
    report.add(f"webhook: an empty answer before {path}, p99", idle, "ms")
    server.judged()
    p50, _, p99 = percentiles(_ask(server, path, reviews))
    _, _, judged = percentiles(server.judged())
    report.add(f"webhook: {path}, one after the other, p50", p50, "ms", budget=5.0)
    report.add(f"webhook: {path}, one after the other, p99", p99, "ms", budget=5.0)
    report.add(f"webhook: {path}, judgement, p99", judged, "ms CPU", budget=5.0)
    before, began = server.cpu_seconds(), time.perf_counter()
    clients = [threading.Thread(target=_ask, args=(server, path, reviews)) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    rate = CLIENTS * REVIEWS / (time.perf_counter() - began)
    work = (server.cpu_seconds() - before) / (CLIENTS * REVIEWS)
    report.add(f"webhook: {path}, {CLIENTS} connections", rate, "reviews/s", budget=500, is_floor=True)
    # Client and server share the machine, so the rate of one core is computed from the server's own CPU seconds.
    report.add(f"webhook: {path}, work", work * 1e3, "ms CPU a review", budget=2.0)


def _ask(server: _Server, path: str, reviews: list[bytes]) -> list[float]:
    """Send reviews, or empty requests if there are none, on one connection; return the seconds of each."""
    trust = ssl.create_default_context(cadata=server.authorities)
    connection = http.client.HTTPSConnection(_NAME, server.port, context=trust, timeout=30)
    times = []
    for number in range(REVIEWS):
        began = time.perf_counter()
        if reviews:
            connection.request("POST", path, reviews[number % len(reviews)], {"Content-Type": "application/json"})
        else:
            connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status}")
        times.append(time.perf_counter() - began)
    connection.close()
    return times


def _serve(process: Connection) -> None:
    """Run the server on one core."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    began = time.perf_counter()
    fleet = PublishedFleet(DRIVERS)
    fleet.replace_classes(tuple(_classes()))
    fleet.replace_slices(())
    for one in _slices():
        fleet.put_slice(one)
    fleet.shapes()
    seconds = time.perf_counter() - began
    pair = make_certificate_pair((_NAME,), datetime.now(UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificate_pair(context, pair)
    linter = FleetLinter(fleet, DRIVERS, kubernetes="1.35")
    taken: list[float] = []
    made = reviewers(DRIVERS, linter, ImageAdvisor(fleet, DRIVERS))
    timed = {path: _timed(judge, taken) for path, judge in made.items()}
    server = ReviewServer(("127.0.0.1", 0), context, reviewers=timed, pages={})
    server.start()
    process.send((server.port, pair.authorities, seconds))
    while question := process.recv():
        process.send(time.process_time() if question == "cpu" else taken[:])
        taken.clear()


def _timed(judge: Reviewer, taken: list[float]) -> Reviewer:
    """Record the CPU time of its thread for each judgement."""

    def run(review: Any, deadline: ReviewDeadline) -> Wire:
        began = time.thread_time()
        try:
            return judge(review, deadline)
        finally:
            taken.append(time.thread_time() - began)

    return run


def _slices() -> Iterator[dict[str, Any]]:
    """Return the slices of the fleet; the nodes differ in names and UUIDs, as real ones do."""
    devices = json.dumps(
        [one.wire for one in fleet_of_profile("dgx-h100").devices if one.driver == NVIDIA_DRIVER][:GPUS]
    )
    uuids = sorted(set(re.findall(r"GPU-[0-9a-f-]{36}", devices)))
    for number in range(NODES):
        text = devices
        for index, uuid in enumerate(uuids):
            text = text.replace(uuid, f"GPU-{number:08x}-0000-0000-0000-{index:012x}")
        pool = {"name": f"node-{number}", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": NVIDIA_DRIVER, "nodeName": f"node-{number}", "pool": pool, "devices": json.loads(text)}
        yield {"metadata": {"name": f"node-{number}", "uid": str(number)}, "spec": spec}


def _classes() -> list[dict[str, Any]]:
    paths = sorted((_ROOT / "deviceclasses").glob("*.yaml"))
    return [one for path in paths for one in yaml.safe_load_all(path.read_text()) if one]


def _written() -> list[dict[str, Any]]:
    """Return every claim and template of examples/."""
    paths = sorted((_ROOT / "examples" / "resourceclaims").glob("*.yaml"))
    objects = [one for path in paths for one in yaml.safe_load_all(path.read_text()) if one]
    return [one for one in objects if one["kind"] in {"ResourceClaim", "ResourceClaimTemplate"}]


def _with_selectors() -> list[bytes]:
    return [_review(one) for one in _written()]


def _with_configs() -> list[bytes]:
    """Return the same claims with two configs each, of which one in four is wrong."""
    reviews = []
    for number, one in enumerate(_written()):
        interval = "Forever" if number % 4 == 0 else "Long"
        sliced = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}}
        limits = {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "10Gi"}
        spec = one["spec"]["spec"] if one["kind"] == "ResourceClaimTemplate" else one["spec"]
        spec["devices"]["config"] = [_config(sliced), _config({"strategy": "MPS", "mpsConfig": limits})]
        reviews.append(_review(one))
    return reviews


def _config(sharing: dict[str, Any]) -> dict[str, Any]:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
    return {"opaque": {"driver": NVIDIA_DRIVER, "parameters": parameters}}


def _review(obj: dict[str, Any]) -> bytes:
    """Return a review with everything that an API server puts around an object."""
    kind = {"group": "resource.k8s.io", "version": "v1", "kind": obj["kind"]}
    resource = {"group": "resource.k8s.io", "version": "v1", "resource": f"{obj['kind'].lower()}s"}
    managed = [{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:devices": {"f:requests": {}}}}}]
    obj = {**obj, "metadata": {**obj["metadata"], "uid": "5f0c", "managedFields": managed}}
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": kind,
        "resource": resource,
        "requestKind": kind,
        "requestResource": resource,
        "name": obj["metadata"].get("name", ""),
        "namespace": "team",
        "operation": "CREATE",
        "userInfo": {"username": "someone", "groups": ["system:authenticated"]},
        "object": obj,
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions"},
    }
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


def _rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS")
