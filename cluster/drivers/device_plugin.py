"""A device plugin as vendors ship them: it registers with the kubelet and serves ListAndWatch, over real gRPC.

    python -m cluster.drivers.device_plugin nvidia.com/gpu 4 [FOLDER]

In: a resource, a number of devices, the kubelet's folder of device plugins. Out: devices in the node's allocatable, for
as long as this process lives. Messages are encoded by hand, as three fields need no generated code.
Source: Kubernetes device plugin API v1beta1.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

FOLDER = Path("/var/lib/kubelet/device-plugins")
SOCKET = "nvidia-gpu.sock"
SERVICE = "v1beta1.DevicePlugin"


def text(number: int, value: str | bytes) -> bytes:
    """Return an encoded field of strings, bytes or messages of less than 128 bytes."""
    content = value.encode() if isinstance(value, str) else value
    assert len(content) < 128, value
    return bytes([number << 3 | 2, len(content)]) + content


class DevicePlugin:
    """Serves `count` healthy devices of `resource` until it is stopped."""

    def __init__(self, resource: str, count: int, folder: Path = FOLDER) -> None:
        self.resource, self.count, self.folder = resource, count, folder
        self.stopped = threading.Event()

    def run(self) -> None:
        """Serve, register, and wait to be stopped."""
        server = grpc.server(ThreadPoolExecutor(max_workers=4))
        unary = grpc.unary_unary_rpc_method_handler
        handlers = {
            "GetDevicePluginOptions": unary(_nothing),
            "Allocate": unary(lambda _request, _context: text(1, b"")),
            "GetPreferredAllocation": unary(_nothing),
            "PreStartContainer": unary(_nothing),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        server.add_insecure_port(f"unix:{self.folder / SOCKET}")
        server.start()
        with grpc.insecure_channel(f"unix:{self.folder / 'kubelet.sock'}") as channel:
            register: Callable[..., bytes] = channel.unary_unary("/v1beta1.Registration/Register")
            register(text(1, "v1beta1") + text(2, SOCKET) + text(3, self.resource), timeout=10)
        print(f"registered {self.count} {self.resource}", flush=True)
        self.stopped.wait()
        server.stop(grace=0.5).wait(5)

    def _list(self, _request: bytes, _context: Any) -> Iterator[bytes]:
        yield b"".join(text(1, text(1, f"device-{n}") + text(2, "Healthy")) for n in range(self.count))
        self.stopped.wait()


def _nothing(_request: bytes, _context: Any) -> bytes:
    return b""


if __name__ == "__main__":
    plugin = DevicePlugin(sys.argv[1], int(sys.argv[2]), *map(Path, sys.argv[3:]))
    signal.signal(signal.SIGTERM, lambda *_: plugin.stopped.set())
    plugin.run()
