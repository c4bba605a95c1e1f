"""An API server of 10,000 nodes as `dra-driver usage` asks it: agents behind its proxy, claims, slices and Nodes.

Everything is generated when it is asked for, as long as real objects are. `python -m benchmarks.usage.server` prints
its URL and serves until its standard input ends.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

NODES, GPUS = 10_000, 8
_MODEL = "NVIDIA H100 80GB HBM3"
_DRIVER = "gpu.nvidia.com"
_FIELDS = [{"manager": "writer", "operation": "Update", "fieldsV1": {f"f:field{number}": {} for number in range(20)}}]
_PROXY = re.compile(r"/agent-(\d+):9400/proxy/metrics$")


def _meta(name: str, **more: object) -> dict[str, Any]:
    return {"name": name, "creationTimestamp": "2026-11-20T08:00:00Z", "managedFields": _FIELDS, **more}


def _pod(number: int) -> dict[str, Any]:
    environment = [{"name": f"VARIABLE_{one}", "value": "x" * 30} for one in range(30)]
    container = {"name": "agent", "ports": [{"name": "metrics", "containerPort": 9400}], "env": environment}
    spec = {"nodeName": f"node-{number}", "containers": [container]}
    return {"metadata": _meta(f"agent-{number}", namespace="dra"), "spec": spec, "status": {"phase": "Running"}}


def _node(number: int) -> dict[str, Any]:
    labels = {f"example.com/label-{one}": "x" * 20 for one in range(30)}
    image = {
        "names": [f"registry.example/team/image@sha256:{'0' * 64}", "registry.example/team/image:1"],
        "sizeBytes": 1,
    }
    return {"metadata": _meta(f"node-{number}", labels=labels), "status": {"images": [image] * 50}}


def _slice(number: int) -> dict[str, Any]:
    attributes = {f"attribute{one}": {"string": _MODEL} for one in range(25)}
    capacity = {"memory": {"value": "81559Mi"}}
    devices = [{"name": f"gpu-{one}", "attributes": attributes, "capacity": capacity} for one in range(GPUS)]
    pool = {"name": f"node-{number}", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": _DRIVER, "nodeName": f"node-{number}", "pool": pool, "devices": devices}
    return {"metadata": _meta(f"slice-{number}"), "spec": spec}


def _claim(number: int) -> dict[str, Any]:
    exactly = {"deviceClassName": _DRIVER, "allocationMode": "ExactCount", "count": 1}
    node, gpu = divmod(number, GPUS)
    result = {"request": "gpu", "driver": _DRIVER, "pool": f"node-{node}", "device": f"gpu-{gpu}"}
    return {
        "metadata": _meta(f"claim-{number}", namespace=f"team-{number % 50}", uid=_uid(number)),
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        "status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": [{"name": f"pod-{number}"}]},
    }


def _uid(number: int) -> str:
    return f"0bd1c5a0-7a3c-4e35-9d0a-{number:012}"


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    count: int
    make: Callable[[int], dict[str, Any]]


_KINDS = {
    "pods": _Kind("Pod", NODES, _pod),
    "nodes": _Kind("Node", NODES, _node),
    "resourceslices": _Kind("ResourceSlice", NODES, _slice),
    "resourceclaims": _Kind("ResourceClaim", NODES * GPUS, _claim),
}


def _metrics(node: int) -> str:
    """Return the page of an agent whose GPUs are each held by a claim."""
    kind = f'device_class="{_DRIVER}",model="{_MODEL}",profile=""'
    pool = f'dra_pool_name="node-{node}/{_DRIVER}"'
    lines = [f'dra_unclaimed_seconds_total{{{pool},model="{_MODEL}"}} 10']
    for gpu in range(GPUS):
        number = node * GPUS + gpu
        claim = f'dra_claim_uid="{_uid(number)}",dra_claim_name="claim-{number}"'
        labels = f'{claim},dra_claim_namespace="team-{number % 50}",{kind},{pool}'
        device = f'{labels},dra_device_name="gpu-{gpu}",dra_share_id="",pod="pod-{number}"'
        lines += [f"dra_claim_{what}_seconds_total{{{labels}}} 3600.5" for what in ("allocated", "busy", "measured")]
        lines += [f"dra_claim_device_info{{{device}}} 1", f"dra_claim_memory_used_max_bytes{{{labels}}} 1000000"]
        lines += [f'dra_claim_sm_active_bucket{{{labels},le="{le}"}} 5' for le in ("0.1", "0.5", "1", "+Inf")]
        total = f'namespace="team-{number % 50}",{kind}'
        lines += [f"dra_{what}_seconds_total{{{total}}} 3600.5" for what in ("allocated", "busy", "measured")]
    return "\n".join(lines) + "\n"


def _page(kind: _Kind, query: dict[str, list[str]]) -> str:
    first = int(query.get("continue", ["0"])[0])
    end = min(kind.count, first + int(query.get("limit", [str(kind.count)])[0]))
    metadata = {"resourceVersion": "1", **({"continue": str(end)} if end < kind.count else {})}
    items = [kind.make(number) for number in range(first, end)]
    return json.dumps({"kind": f"{kind.name}List", "metadata": metadata, "items": items})


class _UsageHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Otherwise each body waits up to 40 ms until the client has acknowledged the header. Go's servers do the same.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        agent = _PROXY.search(asked.path)
        kind = _KINDS.get(asked.path.rpartition("/")[2])
        answer = _metrics(int(agent[1])) if agent else _page(kind, parse_qs(asked.query)) if kind else "{}"
        body = answer.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain" if agent else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    """Serve until standard input ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _UsageHandler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main()
