"""Told: kubelets that report pods and claims on PodResources sockets, all in one process.

`python -m benchmarks.told CLAIMS SOCKET...` answers on each socket with one pod that has the given number of the
crowd's claims, all still being prepared, so only the API server knows their devices. It ends when standard input does.
Source: kubelet podresources/v1 (field numbers).
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import grpc


def main() -> None:
    """Serve until standard input ends."""
    answer = pods(int(sys.argv[1]))
    server = grpc.server(ThreadPoolExecutor(8))
    methods = {
        "List": grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer),
        "GetAllocatableResources": grpc.unary_unary_rpc_method_handler(lambda _request, _context: b""),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", methods),))
    for path in sys.argv[2:]:
        server.add_insecure_port(f"unix:{path}")
    server.start()
    print("ready", flush=True)
    sys.stdin.read()
    server.stop(0)


def pods(claims: int) -> bytes:
    """Return a ListPodResourcesResponse with one pod, one container, and the given claims."""
    used = b"".join(_field(5, _field(2, b"crowd-%d" % number) + _field(3, b"crowd")) for number in range(claims))
    return _field(1, _field(1, b"pod") + _field(2, b"crowd") + _field(3, _field(1, b"main") + used))


def _field(number: int, content: bytes) -> bytes:
    """Return one length-delimited field, encoded."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


if __name__ == "__main__":
    main()
