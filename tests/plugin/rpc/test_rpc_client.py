"""The client of one call: what grpcio's server and ours answer, and servers that break the rules or never end."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from dra_driver.plugin.rpc import frames
from dra_driver.plugin.rpc.client import call
from dra_driver.plugin.rpc.header_fields import literal
from dra_driver.plugin.rpc.response import RpcFault
from dra_driver.plugin.rpc.stream import framed

METHOD = "/service/Method"
SECONDS = 60.0
MAX = 100_000
HEAD = frames.frame(frames.HEADERS, frames.END_HEADERS, 1, literal(b":status", b"200"))
END = frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, literal(b"grpc-status", b"0"))
OPENING = frames.settings({})
ANSWER = frames.frame(frames.DATA, 0, 1, framed(b"answer"))


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dra") as folder:
        yield Path(folder) / "server.sock"


@pytest.fixture
def served(path: Path) -> Iterator[Callable[[Any], Path]]:
    """Let grpcio answer with a function of the request and the call."""
    server = grpc.server(ThreadPoolExecutor(1))

    def begin(answer: Any) -> Path:
        handler = grpc.method_handlers_generic_handler(
            "service", {"Method": grpc.unary_unary_rpc_method_handler(answer)}
        )
        server.add_generic_rpc_handlers((handler,))
        server.add_insecure_port(f"unix:{path}")
        server.start()
        return path

    yield begin
    server.stop(0).wait()


@pytest.fixture
def raw(path: Path) -> Iterator[Callable[..., Path]]:
    """Let a server send these bytes to each client, and end there or keep the connection open."""
    listener = socket.socket(socket.AF_UNIX)

    def serve(sent: bytes, *, is_kept: bool) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):  # the client may be gone
            connection.sendall(sent)
            if not is_kept:
                connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass

    def begin(sent: bytes, *, is_kept: bool = False) -> Path:
        listener.bind(str(path))
        listener.listen()
        threading.Thread(target=serve, args=(sent,), kwargs={"is_kept": is_kept}, daemon=True).start()
        return path

    yield begin
    listener.close()


def asked(path: Path, message: bytes = b"question", seconds: float = SECONDS) -> Any:
    return call(path, METHOD, message, seconds=seconds, max_bytes=MAX)


@pytest.mark.parametrize("size", [0, 1, 10_000, MAX])
def test_an_answer_of_grpcs_own_server_comes_whole(served: Any, size: int) -> None:
    path = served(lambda _, __: b"x" * size)
    assert asked(path).message == b"x" * size


def test_trailing_metadata_comes_with_the_answer(served: Any) -> None:
    def answer(request: bytes, context: Any) -> bytes:
        assert context.time_remaining() <= SECONDS
        context.set_trailing_metadata((("mark", "here"),))
        return request

    found = asked(served(answer))
    assert (found.message, found.metadata["mark"]) == (b"question", "here")


def test_a_status_is_a_fault_with_its_code_and_its_text(served: Any) -> None:
    path = served(lambda _, context: context.abort(grpc.StatusCode.NOT_FOUND, "gone: 100 % ü"))
    with pytest.raises(RpcFault, match="NOT_FOUND: gone: 100 % ü"):
        asked(path)


def test_a_method_that_is_not_served_is_a_fault(served: Any) -> None:
    path = served(lambda request, _: request)
    with pytest.raises(RpcFault, match="UNIMPLEMENTED"):
        call(path, "/service/Other", b"", seconds=SECONDS, max_bytes=MAX)


@pytest.mark.parametrize("size", [MAX + 1, 10 * MAX])
def test_an_answer_that_is_too_large_is_refused(served: Any, size: int) -> None:
    path = served(lambda _, __: b"x" * size)
    with pytest.raises(RpcFault, match="RESOURCE_EXHAUSTED"):
        asked(path)


def test_a_socket_on_which_nothing_listens_is_a_fault(path: Path) -> None:
    with pytest.raises(RpcFault, match="UNAVAILABLE"):
        asked(path)
    path.touch()
    with pytest.raises(RpcFault, match="UNAVAILABLE"):
        asked(path)


def test_a_server_that_does_not_answer_is_a_fault_at_the_deadline(raw: Any) -> None:
    with pytest.raises(RpcFault, match="DEADLINE_EXCEEDED"):
        asked(raw(OPENING, is_kept=True), seconds=0.05)


def test_an_answer_in_any_pieces_with_other_frames_between_is_read(raw: Any) -> None:
    ping = frames.frame(frames.PING, 0, 0, b"12345678")
    window = frames.number_frame(frames.WINDOW_UPDATE, 0, 5)
    body = framed(b"answer")
    pieces = [frames.frame(frames.DATA, 0, 1, body[at : at + 1]) for at in range(len(body))]
    assert asked(raw(OPENING + window + HEAD + ping.join(pieces) + END, is_kept=True)).message == b"answer"


def test_header_fields_that_continue_in_another_frame_are_read(raw: Any) -> None:
    block = literal(b":status", b"200")
    head = frames.frame(frames.HEADERS, 0, 1, block[:4]) + frames.frame(
        frames.CONTINUATION, frames.END_HEADERS, 1, block[4:]
    )
    assert asked(raw(OPENING + head + ANSWER + END)).message == b"answer"


def trailers(*fields: tuple[bytes, bytes]) -> bytes:
    block = b"".join(literal(*each) for each in fields)
    return frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, block)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"", "UNAVAILABLE"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "INTERNAL"),
        (OPENING + HEAD + ANSWER, "UNAVAILABLE"),
        (OPENING + HEAD + END, "INTERNAL"),
        (OPENING + ANSWER + END, "INTERNAL"),
        (OPENING + HEAD + ANSWER + ANSWER + END, "INTERNAL"),
        (OPENING + HEAD + HEAD, "INTERNAL"),
        (OPENING + HEAD + frames.frame(frames.DATA, frames.END_STREAM, 1, framed(b"answer")), "INTERNAL"),
        (OPENING + HEAD + frames.frame(frames.DATA, 0, 3, b"x"), "INTERNAL"),
        (OPENING + HEAD + frames.frame(frames.DATA, 0, 1, b"\x01\0\0\0\0") + END, "INTERNAL"),
        (OPENING + frames.frame(frames.HEADERS, frames.END_HEADERS, 1, literal(b":status", b"404")), "INTERNAL"),
        (OPENING + frames.frame(frames.HEADERS, frames.END_HEADERS, 3, literal(b":status", b"200")), "INTERNAL"),
        (OPENING + frames.frame(frames.CONTINUATION, frames.END_HEADERS, 1, b""), "INTERNAL"),
        (OPENING + frames.frame(frames.HEADERS, 0, 1, b"") + ANSWER, "INTERNAL"),
        (OPENING + frames.frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"), "INTERNAL"),
        (OPENING + frames.frame(frames.RST_STREAM, 0, 1, b"\0\0\0\x08"), "UNAVAILABLE"),
        (OPENING + frames.go_away(0, 0), "UNAVAILABLE"),
        (OPENING + frames.frame(frames.PING, 0, 0, b"x" * 16_000) * 80, "INTERNAL"),
        (OPENING + b"\xff\xff\xff" + bytes(6), "INTERNAL"),
        (OPENING + trailers((b"grpc-status", b"14"), (b"grpc-message", b"not%20now")), "UNAVAILABLE: not now"),
        (OPENING + trailers((b"grpc-status", b"99")), "UNKNOWN"),
        (OPENING + trailers((b"grpc-status", b"\xff")), "UNKNOWN"),
        (OPENING + trailers(), "UNKNOWN"),
    ],
)
def test_a_server_that_breaks_the_rules_is_a_fault(raw: Any, sent: bytes, code: str) -> None:
    with pytest.raises(RpcFault, match=code):
        asked(raw(sent))
