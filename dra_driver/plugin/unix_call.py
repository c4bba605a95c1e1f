"""Unix call: one gRPC call of another program's server on a unix socket, as the agent makes a few of each minute."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc


def call_once(
    path: Path, method: str, request: Any, *, seconds: float, max_bytes: int
) -> tuple[bytes, Mapping[str, str]]:
    """Call a method of the server that listens at `path`, on a connection of its own.

    Args:
        path: the socket.
        method: "/service/method".
        request: the message to send.
        seconds: how long the whole call may take.
        max_bytes: how long the answer may be.

    Returns: the answer's message as it came, and the text values among its trailing metadata.

    Raises: grpc.RpcError, whose text `fault_text` returns.
    """
    options = (
        ("grpc.enable_http_proxy", 0),
        ("grpc.default_authority", "localhost"),
        ("grpc.max_receive_message_length", max_bytes),
        ("grpc.use_local_subchannel_pool", 1),  # a restarted server is found at once, whatever failed before
    )
    with grpc.insecure_channel(f"unix:{path}", options=options) as channel:
        function = channel.unary_unary(
            method, request_serializer=lambda message: message.SerializeToString(), response_deserializer=bytes
        )
        answer, call = function.with_call(request, timeout=seconds)
        return answer, {key: value for key, value in call.trailing_metadata() or () if isinstance(value, str)}


def fault_text(error: grpc.RpcError) -> str:
    """Return the code and the details of a failed call in one line of at most 300 characters."""
    code, details = getattr(error, "code", None), getattr(error, "details", None)
    name = code().name if code else type(error).__name__
    return " ".join(f"{name}: {details() if details else error}"[:300].split())
