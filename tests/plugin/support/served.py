"""A gRPC server with methods for tests, and requests as bytes, for clients that break the rules."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from dra_driver.plugin._proto.k8s.dra.v1 import api_pb2 as v1
from dra_driver.plugin.rpc import frames
from dra_driver.plugin.rpc.call import RpcCall, RpcMethod, StatusCode
from dra_driver.plugin.rpc.header_fields import literal
from dra_driver.plugin.rpc.server import RpcServer

MAX = 4  # calls at once of the method that waits
SECONDS = 60.0


class Service:
    """Methods for all that a server has to do; a request is a claim, and `uid` says what is wanted."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.seen: list[RpcCall] = []
        self.ended: list[str] = []

    def methods(self) -> dict[str, RpcMethod]:
        read = v1.Claim.FromString
        return {
            "/test/Echo": RpcMethod(self.echo, read, 64),
            "/test/Wait": RpcMethod(self.wait, read, MAX),
            "/test/List": RpcMethod(self.list, read, 8, is_stream=True),
        }

    def echo(self, request: v1.Claim, call: RpcCall) -> v1.Claim:
        self.seen.append(call)
        if request.uid == "abort":
            call.abort(StatusCode.RESOURCE_EXHAUSTED, "too much: 100 %, für alle")
        if request.uid == "bug":
            raise ZeroDivisionError("oops")
        if request.uid == "trailers":
            call.set_trailing_metadata((("one", "1"), ("two", "2")))
        return v1.Claim(uid=request.uid, name=request.name * (1000 if request.uid == "much" else 1))

    def wait(self, request: v1.Claim, call: RpcCall) -> v1.Claim:
        self.seen.append(call)
        call.add_callback(lambda: self.ended.append(request.uid))
        self.gate.wait(SECONDS)
        return request

    def list(self, request: v1.Claim, call: RpcCall) -> Iterator[v1.Claim]:
        call.add_callback(self.gate.set)
        for number in range(3):
            yield v1.Claim(uid=str(number))
        if request.uid == "endless":
            self.gate.wait(SECONDS)
            self.ended.append("list")


class Served:
    """A server with a client."""

    def __init__(self, path: Path) -> None:
        self.path, self.service = path, Service()
        self.server = RpcServer(self.service.methods())
        self.server.add_socket(path)
        self.server.start()
        self.channel = grpc.insecure_channel(f"unix:{path}")

    def call(self, uid: str, method: str = "Echo", seconds: float = SECONDS, name: str = "n") -> v1.Claim:
        found: v1.Claim = self.method(method)(v1.Claim(uid=uid, name=name), timeout=seconds)
        return found

    def method(self, method: str) -> Any:
        return self.channel.unary_unary(
            f"/test/{method}",
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=v1.Claim.FromString,
        )

    def raw(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(self.path))  # it waits while many others wait to be accepted
        sock.settimeout(SECONDS)
        return sock


def head(stream: int, flags: int = frames.END_HEADERS, path: bytes = b"/test/Echo", **more: bytes) -> bytes:
    fields = literal(b":method", b"POST") + literal(b":path", path)
    fields += b"".join(literal(name.replace("_", "-").encode(), value) for name, value in more.items())
    return frames.frame(frames.HEADERS, flags, stream, fields)


def data(stream: int, payload: bytes, flags: int = frames.END_STREAM) -> bytes:
    return frames.frame(frames.DATA, flags, stream, payload)


MESSAGE = b"\0\0\0\0\3\x12\1a"
OPENING = frames.PREFACE + frames.settings({})
