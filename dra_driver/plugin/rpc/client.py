"""Client: calls a method of a server on a unix socket, and returns its answer or raises an RpcFault.

Each call has a connection of its own, because the kubelet and other plugins are called seldom.
Source: RFC 9113, sections 3.4 and 6.5.2; gRPC over HTTP2 (grpc/grpc, doc/PROTOCOL-HTTP2.md), "Requests".
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from dra_driver.plugin.rpc import frames
from dra_driver.plugin.rpc.header_fields import literal
from dra_driver.plugin.rpc.response import HEAD_BYTES, STREAM, ResponseReader, RpcFault, RpcResponse
from dra_driver.plugin.rpc.stream import framed

_PIECE_BYTES = 64 * 1024


def call(path: Path, method: str, message: bytes, *, seconds: float, max_bytes: int) -> RpcResponse:
    """Call a method, given as "/service/method", of the server that listens at `path`, and return its answer.

    The message may have 16 KiB, and its answer `max_bytes`. The whole call may take `seconds`.

    Raises: RpcFault, with gRPC's code for what went wrong: UNAVAILABLE if nothing listens, DEADLINE_EXCEEDED,
    RESOURCE_EXHAUSTED for an answer that is too long, INTERNAL for one that is not gRPC, or the server's own code.
    """
    until = time.monotonic() + seconds
    reader = ResponseReader(max_bytes)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(_left(until))
            sock.connect(os.fspath(path))
            sock.sendall(_opening(max_bytes) + _request(method, message, seconds))
            while True:
                sock.settimeout(_left(until))
                piece = sock.recv(_PIECE_BYTES)
                if not piece:
                    raise RpcFault("UNAVAILABLE", "the server has closed the connection")
                answer, reply = reader.take(piece)
                if answer is not None:
                    return answer
                if reply:
                    sock.sendall(reply)
    except TimeoutError:
        raise RpcFault("DEADLINE_EXCEEDED", f"no answer within {seconds:g} s") from None
    except OSError as error:
        raise RpcFault("UNAVAILABLE", error.strerror or str(error)) from error


def _left(until: float) -> float:
    """Return the seconds that are left. Raises: TimeoutError if there are none."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _opening(max_bytes: int) -> bytes:
    """Return the first bytes of a connection.

    They forbid the server to push, and let it send a complete answer without waiting for window updates.
    """
    window = max_bytes + HEAD_BYTES + frames.FRAME_BYTES  # larger than the limit, so that a longer answer is noticed
    settings = frames.settings({frames.ENABLE_PUSH: 0, frames.INITIAL_WINDOW_SIZE: window})
    return frames.PREFACE + settings + frames.number_frame(frames.WINDOW_UPDATE, 0, window)


def _request(method: str, message: bytes, seconds: float) -> bytes:
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", method.encode()),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"grpc-timeout", b"%dm" % max(1, round(seconds * 1000))),
    )
    block = b"".join(literal(name, value) for name, value in fields)
    head = frames.frame(frames.HEADERS, frames.END_HEADERS, STREAM, block)
    return head + frames.frame(frames.DATA, frames.END_STREAM, STREAM, framed(message))
