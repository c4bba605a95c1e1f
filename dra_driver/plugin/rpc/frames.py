"""Frames of HTTP/2: read from bytes, and written as bytes.

Source: RFC 9113, sections 4 and 6.
"""

from __future__ import annotations

import struct

Http2Frame = tuple[int, int, int, bytes]  # kind, flags, stream (0 stands for the connection) and payload

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, WITH_PRIORITY = 0x4, 0x8, 0x20
NO_ERROR, PROTOCOL_ERROR, REFUSED_STREAM, ENHANCE_YOUR_CALM = 0x0, 0x1, 0x7, 0xB
ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 0x2, 0x3, 0x4, 0x5  # settings
WINDOW_BYTES = 65_535  # the first window of a connection and of each stream
FRAME_BYTES = 16_384  # of a frame's content, at most; a receiver may allow more, but we never do
PING_BYTES = 8
HEAD_BYTES = 9
MAX_WINDOW = 2**31 - 1
_PRIORITY_BYTES = 5
_HEAD = struct.Struct(">LBL")  # length (24 bits) and kind, flags, stream
_SETTING = struct.Struct(">HL")


def content(kind: int, flags: int, payload: bytes) -> bytes:
    """Return the payload of DATA or HEADERS without padding and priority. Raises: ValueError."""
    if not flags & (PADDED | WITH_PRIORITY):
        return payload
    if flags & PADDED:
        if not payload or payload[0] >= len(payload):
            raise ValueError("a frame has more padding than content")
        payload = payload[1 : len(payload) - payload[0]]
    if flags & WITH_PRIORITY and kind == HEADERS:
        if len(payload) < _PRIORITY_BYTES:
            raise ValueError("a frame is too short for its priority")
        payload = payload[_PRIORITY_BYTES:]
    return payload


def number_of(payload: bytes) -> int:
    """Return a payload as one number of 31 bits. Raises: ValueError."""
    if len(payload) != 4:
        raise ValueError("a frame that contains a number does not have four bytes")
    return int.from_bytes(payload) & MAX_WINDOW


def whole_frames(buffer: bytearray) -> list[Http2Frame]:
    """Remove the complete frames from the buffer, and return them. Raises: ValueError."""
    data, place, begin = bytes(buffer), 0, HEAD_BYTES
    size, found = len(data), list[Http2Frame]()
    while begin <= size:
        length_and_kind, flags, stream = _HEAD.unpack_from(data, place)
        length = length_and_kind >> 8
        if length > FRAME_BYTES:
            raise ValueError("a frame is longer than is allowed")
        end = begin + length
        if end > size:
            break
        found.append((length_and_kind & 0xFF, flags, stream & MAX_WINDOW, data[begin:end]))
        place, begin = end, end + HEAD_BYTES
    del buffer[:place]
    return found


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame as bytes."""
    return _HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    """Return a frame with settings."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*each) for each in values.items()))


def settings_of(payload: bytes) -> list[tuple[int, int]]:
    """Return the settings in a frame, in their order. Raises: ValueError."""
    if len(payload) % _SETTING.size:
        raise ValueError("a frame of settings has an incomplete setting")
    return list(_SETTING.iter_unpack(payload))


def number_frame(kind: int, stream: int, number: int) -> bytes:
    """Return a frame whose payload is one number."""
    return frame(kind, 0, stream, number.to_bytes(4))


def go_away(last_stream: int, error: int) -> bytes:
    """Return the frame that announces that no further streams are accepted."""
    return frame(GOAWAY, 0, 0, last_stream.to_bytes(4) + error.to_bytes(4))
