"""The embedded API server with a large cluster's objects in it, which counts what each client requests.

The big cluster's claims, pods and slices are generated when they are asked for, from templates as long as real ones,
and are never stored; in lists they follow the real objects. The server implements limit, continue (a position),
resourceVersion=0 (the limit is ignored), field selectors and single reads as a real one does. It is a Python program
itself, so only the clients are measured.

`python -m benchmarks.large_cluster` reads commands from standard input, one JSON object per line, and answers each with
one line.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from dra_driver.base.wire import Wire
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.http import HttpRequest, Response, Stream
from dra_driver.simulator.shapes import ApiRefusal
from dra_driver.simulator.store import CLAIMS, PODS, SLICES, ApiKind, Target, parse_path

PER_PIECE = 500
NODES = 10_000
SIZES = {"resourceclaims": 100_000, "pods": 110_000, "resourceslices": 80_000}
ONE_NODES = 8  # the claims of one node; the server that is not full has only these
_MANAGED = [
    {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "resource.k8s.io/v1",
        "time": "2026-11-20T08:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {f"f:{part}": {"f:devices": {".": {}, f"f:{name}": {}}} for name in ("results", "config")},
    }
    for manager, part in (("kube-controller-manager", "spec"), ("kube-scheduler", "status"))
]


class LargeCluster(EmbeddedApi):
    """The API server. With `is_full` it has the big cluster's objects."""

    def __init__(self, *, is_full: bool) -> None:
        super().__init__(version="1.35")
        self._sizes = SIZES if is_full else {**dict.fromkeys(SIZES, 0), "resourceclaims": ONE_NODES}
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.read_bytes: Counter[str] = Counter()

    def _authenticate(self, request: HttpRequest) -> None:
        """Accept every client; the token is the client's name."""

    def _serve(self, request: HttpRequest) -> Response | Stream | None:
        client = request.headers.get("authorization", "").removeprefix("Bearer ")
        self.counts[client][_asked(request)] += 1
        answer = self._crowded(request) or super()._serve(request)
        self.log.clear()
        if isinstance(answer, Response):
            self.read_bytes[client] += len(answer.body)
        elif isinstance(answer, Stream):
            return Stream(self._counted(answer.pieces, client), answer.content_type)
        return answer

    def _counted(self, pieces: Iterator[bytes], client: str) -> Iterator[bytes]:
        for piece in pieces:
            self.read_bytes[client] += len(piece)
            yield piece

    def _crowded(self, request: HttpRequest) -> Response | Stream | None:
        """Return the answer made from the generated objects; None for requests about other objects."""
        try:
            target = parse_path(request.path)
        except ApiRefusal:
            return None
        if request.method != "GET" or target.kind not in _TEMPLATES or "watch" in request.query:
            return None
        if target.name:
            return self._one(target)
        numbers = self._selected(target.kind, request.query.get("fieldSelector", ""))
        return self._page(target.kind, numbers, request) if numbers else None

    def _one(self, target: Target) -> Response | None:
        stem, _, digits = target.name.rpartition("-")
        is_there = stem == "crowd" and digits.isdigit() and int(digits) < self._sizes[target.kind.plural]
        return Response(200, _TEMPLATES[target.kind].replace(b"%d", digits.encode())) if is_there else None

    def _selected(self, kind: ApiKind, selector: str) -> range:
        """Return the numbers of the objects that match a field selector.

        The generated nodes are crowd-node-0, crowd-node-1, …
        """
        terms = dict(term.split("=", 1) for term in selector.split(",") if term)
        everything = range(self._sizes[kind.plural])
        node = terms.get("spec.nodeName")
        if node is None:
            return everything if not terms.keys() & {"metadata.name", "spec.driver"} else range(0)
        number = node.removeprefix("crowd-node-")
        return everything[int(number) :: NODES] if number.isdigit() else range(0)

    def _page(self, kind: ApiKind, numbers: range, request: HttpRequest) -> Response | Stream:
        query = request.query
        limit = 0 if query.get("resourceVersion") == "0" else int(query.get("limit") or 0)
        first = int(query.get("continue") or 0)
        real = [] if first else [stored.encoded for stored in self.store.all(kind)]
        chosen = numbers[first : first + limit] if limit else numbers[first:]
        rest = first + len(chosen)
        metadata = {"resourceVersion": str(self.store.revision)}
        if rest < len(numbers):
            metadata |= {"continue": str(rest)}
        head = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata}
        pieces = _pieces(json.dumps(head)[:-1].encode() + b',"items":[', real, kind, chosen)
        return Response(200, b"".join(pieces)) if limit else Stream(pieces)


def _pieces(head: bytes, real: list[bytes], kind: ApiKind, numbers: range) -> Iterator[bytes]:
    yield head + b",".join(real)
    is_begun, template = bool(real), _TEMPLATES[kind]
    for start in range(0, len(numbers), PER_PIECE):
        made = [template.replace(b"%d", b"%d" % number) for number in numbers[start : start + PER_PIECE]]
        yield (b"," if is_begun else b"") + b",".join(made)
        is_begun = True
    yield b"]}"


def _asked(request: HttpRequest) -> str:
    """Return the verb and the resource of a request, as RBAC names them."""
    try:
        target = parse_path(request.path)
    except ApiRefusal:
        return f"get {request.path}"
    query = request.query
    if request.method == "GET":
        verb = "get" if target.name else "watch" if "watch" in query else "list"
    else:
        verb = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[request.method]
    return f"{verb} {target.kind.plural}{' (dry run)' if 'dryRun' in query else ''}"


def _template(kind: ApiKind, spec: Wire, status: Wire | None = None) -> bytes:
    metadata: dict[str, Any] = {"name": "crowd-%d", "uid": "0bd1c5a0-7a3c-4e35-9d0a-%d", "resourceVersion": "1"}
    if kind.is_namespaced:
        metadata["namespace"] = "crowd"
    metadata |= {"creationTimestamp": "2026-11-20T08:00:00Z", "managedFields": _MANAGED}
    wire = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}
    return json.dumps(wire | ({"status": status} if status else {}), separators=(",", ":")).encode()


def _claim() -> bytes:
    exactly = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 1}
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "crowd-node-%d", "device": "gpu-0"}
    term = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["crowd-node-%d"]}
    allocation = {
        "devices": {"results": [result]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [term]}]},
        "allocationTimestamp": "2026-11-20T08:00:00Z",
    }
    user = {"resource": "pods", "name": "crowd-%d", "uid": "7c0cf1f5-2c5c-4c3e-8d8f-%d"}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    return _template(CLAIMS, spec, {"allocation": allocation, "reservedFor": [user]})


def _pod() -> bytes:
    container = {"name": "main", "image": "registry.example/team/image:1", "env": [{"name": "A", "value": "x" * 800}]}
    return _template(PODS, {"nodeName": "crowd-node-%d", "containers": [container]}, {"phase": "Running"})


def _slice() -> bytes:
    attributes = {f"attribute{number}": {"string": "NVIDIA H100 80GB HBM3"} for number in range(20)}
    device = {"name": "gpu-0", "attributes": attributes, "capacity": {"memory": {"value": "81559Mi"}}}
    pool = {"name": "crowd-node-%d", "generation": 1, "resourceSliceCount": 1}
    return _template(
        SLICES, {"driver": "gpu.nvidia.com", "nodeName": "crowd-node-%d", "pool": pool, "devices": [device]}
    )


_TEMPLATES = {CLAIMS: _claim(), PODS: _pod(), SLICES: _slice()}


def main() -> None:
    """Serve until standard input ends."""
    server = LargeCluster(is_full=sys.argv[1] == "full")
    print(json.dumps({"url": server.start()}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        for wire in command.get("create", ()):
            server.create(wire)
        answer = {
            "counts": {client: dict(counts) for client, counts in list(server.counts.items())},
            "bytes": dict(server.read_bytes),
            "devices": {one["spec"]["nodeName"]: len(one["spec"].get("devices") or ()) for one in server.items(SLICES)},
        }
        print(json.dumps(answer), flush=True)
    server.stop()


if __name__ == "__main__":
    main()
