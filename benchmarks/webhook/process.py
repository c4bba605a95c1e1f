"""Process: a `dra-driver webhook` of its own, over the slices of a fleet of a given size."""

from __future__ import annotations

import contextlib
import http.client
import json
import multiprocessing
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.webhook.fleet import serve
from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.tools.webhook.certificates import make_certificate_pair

NAME = "localhost"
_LONGEST_SECONDS = 1800.0


class Webhook:
    """A `dra-driver webhook` process, and the API server that it reads."""

    def __init__(self, nodes: int, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._api = context.Process(target=serve, args=(theirs, nodes), daemon=True)
        self._api.start()
        api_port, self.devices = self._ours.recv()
        self.devices *= nodes
        pair = make_certificate_pair((NAME,), datetime.now(UTC))
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

    def wait_for_warning(self, text: str, review: bytes) -> float:
        """Wait until a warning contains a text; return the seconds that it took."""
        began = time.perf_counter()
        while time.perf_counter() - began < _LONGEST_SECONDS:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if text in str(self.ask("/selectors", review)):
                    return time.perf_counter() - began
            if self.process.poll() is not None:
                raise RuntimeError(f"the webhook ended with {self.process.returncode}")
            time.sleep(0.2)
        raise RuntimeError(f"no warning contains {text!r}")

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
