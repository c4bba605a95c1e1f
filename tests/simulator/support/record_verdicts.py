"""Ask a real API server about every case of api_cases.py and write its verdicts to tests/simulator/verdicts.json.

    python -m tests.simulator.support.record_verdicts --server https://127.0.0.1:6443 --token TOKEN --gates all

With "all" the server runs with the gates of `api_cases.ALL_GATES` on, with "default" none is set. An etcd and a
kube-apiserver with --token-auth-file and --authorization-mode=AlwaysAllow are enough. Other verdicts are kept.
"""

from __future__ import annotations

import argparse
import http.client
import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.simulator.support.api_cases import BROKEN_STATUSES, creations, digest, verdict
from tests.support.api.embedded_client import CLAIMS, claim_wire

VERDICTS = Path(__file__).parents[1] / "verdicts.json"


class Server:
    """A real API server; a connection that it closes without an answer is status 0 (it panicked)."""

    def __init__(self, url: str, token: str) -> None:
        context = ssl._create_unverified_context()
        self._connection = http.client.HTTPSConnection(urlsplit(url).netloc, timeout=30, context=context)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        self._connection.request(method, path, None if body is None else json.dumps(body), self._headers)
        try:
            answer = self._connection.getresponse()
            return answer.status, json.loads(answer.read())
        except http.client.RemoteDisconnected:
            self._connection.close()
            return 0, {}


def record(server: Server) -> dict[str, Any]:
    """Return the verdict on every case, with a digest of what was asked."""
    found = {}
    for name, kind, collection, wire in creations():
        body = {"apiVersion": "resource.k8s.io/v1", "kind": kind, **wire}
        status, answer = server("POST", collection, body)
        found[name] = {"asked": digest(body), "verdict": verdict(status, answer) if status else [0]}
        server("DELETE", f"{collection}/{wire['metadata']['name']}")
    for number, wanted in enumerate(BROKEN_STATUSES):
        server("POST", CLAIMS, {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **claim_wire()})
        stored = server("GET", f"{CLAIMS}/c")[1]
        answer = verdict(*server("PUT", f"{CLAIMS}/c/status", {**stored, "status": wanted}))
        found[f"status-{number:03}"] = {"asked": digest(wanted), "verdict": answer}
        server("DELETE", f"{CLAIMS}/c")
    return found


def main() -> None:
    """Record the verdicts of one server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--token", required=True)
    parser.add_argument("--gates", choices=["all", "default"], required=True)
    options = parser.parse_args()
    server = Server(options.server, options.token)
    version = server("GET", "/version")[1]["minor"]
    verdicts = json.loads(VERDICTS.read_text()) if VERDICTS.exists() else {}
    verdicts[f"1.{version} {options.gates}"] = record(server)
    VERDICTS.write_text(json.dumps(verdicts, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
