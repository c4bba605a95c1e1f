"""RPC stream: one request of a client, as far as it has been received."""

from __future__ import annotations

import struct

from dra_driver.plugin.rpc.call import RpcCall

_MESSAGE_HEAD = struct.Struct(">BL")
_HEAD_BYTES = _MESSAGE_HEAD.size


class RpcStream:
    """A request, its call, and the bytes that flow control allows to send on the stream now (`window`)."""

    __slots__ = ("body", "call", "has_head", "is_complete", "number", "path", "window")

    def __init__(self, number: int, fields: dict[bytes, bytes], window: int) -> None:
        """Begin a request with these header fields. Raises: ValueError for a time limit that can't be read."""
        self.number, self.window = number, window
        self.path = fields.get(b":path", b"")
        self.call = RpcCall(fields.get(b"grpc-timeout"))
        self.body = bytearray()
        self.is_complete = False  # whether the whole request has arrived
        self.has_head = False  # whether the first fields of the answer were sent

    def completed(self) -> RpcStream:
        """Record that the whole request has arrived, and return the stream."""
        self.is_complete = True
        return self

    def message(self) -> bytes:
        """Return the request's message. Raises: ValueError unless there is exactly one message, uncompressed."""
        return message_of(self.body)


def message_of(body: bytearray) -> bytes:
    """Return the message in the body of a request or an answer. Raises: as `RpcStream.message`."""
    if len(body) < _HEAD_BYTES:
        raise ValueError("there is no message")
    is_compressed, length = _MESSAGE_HEAD.unpack_from(body)
    if is_compressed or length != len(body) - _HEAD_BYTES:
        raise ValueError("the message is compressed, or there is more or less than one")
    return bytes(body[_HEAD_BYTES:])


def framed(message: bytes) -> bytes:
    """Return a message as gRPC sends it."""
    return _MESSAGE_HEAD.pack(0, len(message)) + message
