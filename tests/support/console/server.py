"""`dra-driver console-server` as a process of its own, and a client that talks to it as viewers' browsers do."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.chart import ROOT
from tests.support.console.process import Reply
from tests.support.ports import free_port
from tests.support.waiting import until


@dataclass
class RunningServer:
    port: int
    tls: ssl.SSLContext | None = None
    client: dict[str, ssl.SSLContext] = field(default_factory=dict)
    pid: int = 0

    def send(self, method: str, path: str, body: Any = None, certificate: str = "", **headers: str) -> Reply:
        sent = {"host": f"localhost:{self.port}", **{name.replace("_", "-"): value for name, value in headers.items()}}
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        if self.tls:
            context = self.client[certificate] if certificate else self.tls
            line = http.client.HTTPSConnection("localhost", self.port, timeout=60, context=context)
        try:
            line.request(method, path, None if body is None else json.dumps(body).encode(), sent)
            reply = line.getresponse()
            return Reply(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
        finally:
            line.close()

    def ask(self, token: str, name: str, query: str = "") -> Reply:
        return self.send("GET", f"/api/v1/{name}{query}", authorization=f"Bearer {token}")

    def claims(self, token: str) -> set[str]:
        reply = self.ask(token, "claims")
        return {row["name"] for row in _rows(reply) if row["subject"] == "claim"}

    @contextmanager
    def looked_at(self, **headers: str) -> Iterator[None]:
        """Keep a stream of events open, as a page does."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        line.request("GET", "/api/v1/events", headers={"host": f"localhost:{self.port}", **headers})
        reply = line.getresponse()
        assert reply.status == 200, reply.read()
        threading.Thread(target=lambda: [None for _ in iter(reply.readline, b"")], daemon=True).start()
        try:
            yield
        finally:
            if line.sock is not None:
                line.sock.close()


def _rows(reply: Reply) -> list[dict[str, Any]]:
    return reply.json["rows"] if reply.status == 200 else []


@contextmanager
def running_server(kubeconfig: str, *words: str, tls: ssl.SSLContext | None = None) -> Iterator[RunningServer]:
    port = free_port()
    command = [sys.executable, "-m", "dra_driver", "console-server", "--address", f"127.0.0.1:{port}"]
    with subprocess.Popen(
        [*command, "--kubeconfig", kubeconfig, *words], env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as process:
        try:
            server = RunningServer(port, tls, pid=process.pid)
            until(lambda: process.poll() is not None or _is_up(server))
            yield server
        finally:
            process.terminate()
            process.wait(60)


def _is_up(server: RunningServer) -> bool:
    try:
        return server.send("GET", "/healthz").status == 200
    except OSError:
        return False
