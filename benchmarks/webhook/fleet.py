"""Fleet: an API server with the slices of many nodes with MIG partitions on demand, in a process of its own.

The server generates its pages when they are asked for, and on request reports a change of every slice.
"""

from __future__ import annotations

import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from urllib.parse import parse_qs, urlsplit

from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated import SimulatedHardware
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.describing import counter_set_wire, device_wire
from dra_driver.node.devices.partitions import MigPolicy
from dra_driver.node.slices.layout import lay_out

_NODE = "node-of-the-fleet"


class Fleet:
    """The slices of many equal nodes, which differ in names and UUIDs as real ones do."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        hardware = SimulatedHardware("dgx-h100", Roots(), node_name=_NODE)
        inventory = build_inventory(hardware.discover(), MigPolicy(is_dynamic=True))
        self.devices = len(inventory.devices)
        specs = lay_out(
            map(device_wire, inventory.devices), pool=_NODE, node=_NODE, driver=NVIDIA_DRIVER, server_minor=36,
            counter_sets=[counter_set_wire(*item) for item in inventory.offering.counter_sets.items()],
        )  # fmt: skip
        self.texts = [json.dumps(spec.wire(1, len(specs)), separators=(",", ":")) for spec in specs]
        self.uuids = sorted(set(re.findall(r"(?:GPU|MIG)-[0-9a-f-]{36}", "".join(self.texts))))
        self.size = nodes * len(self.texts)

    def slice_text(self, number: int, version: int) -> str:
        """Return the JSON text of one slice."""
        node, index = divmod(number, len(self.texts))
        name, text = f"node-{node}", self.texts[index].replace(_NODE, f"node-{node}")
        for at, uuid in enumerate(self.uuids):
            if uuid in text:
                text = text.replace(uuid, f"{uuid[:4]}{node:08x}-0000-0000-0000-{at:012x}")
        if version > 1:
            text = text.replace('"generation":1', f'"generation":{version}').replace(
                "580.126.20", f"{580 + version}.126.20"
            )
        uid = f"{number:08x}-0000-4000-8000-{number:012x}"
        metadata = f'{{"name":"{name}-{index}","uid":"{uid}","resourceVersion":"{version}"}}'
        return f'{{"metadata":{metadata},"spec":{text}}}'


class _SliceServer(ThreadingHTTPServer):
    """An API server of nothing but a fleet's slices and one class."""

    daemon_threads = True

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(("127.0.0.1", 0), _Reader)
        self.fleet = fleet
        self.version = 1


class _Reader(BaseHTTPRequestHandler):
    """One client's requests: lists page by page, and watches."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    server: _SliceServer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if url.path == "/version":
            self._whole('{"major":"1","minor":"36","gitVersion":"v1.36.0"}')
        elif query.get("watch"):
            self._watch(is_slices=url.path.endswith("resourceslices"))
        elif url.path.endswith("resourceslices"):
            self._page(int(query.get("limit") or self.server.fleet.size), int(query.get("continue") or 0))
        else:
            selectors = [{"cel": {"expression": f'device.driver == "{NVIDIA_DRIVER}"'}}]
            found = {"metadata": {"name": NVIDIA_DRIVER, "resourceVersion": "1"}, "spec": {"selectors": selectors}}
            self._whole(json.dumps({"metadata": {"resourceVersion": "1"}, "items": [found]}))

    def _page(self, limit: int, begin: int) -> None:
        fleet = self.server.fleet
        end = min(begin + limit, fleet.size)
        token = f',"continue":"{end}"' if end < fleet.size else ""
        items = ",".join(fleet.slice_text(number, 1) for number in range(begin, end))
        self._whole(f'{{"metadata":{{"resourceVersion":"1"{token}}},"items":[{items}]}}')

    def _watch(self, *, is_slices: bool) -> None:
        self.send_response_only(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.flush()
        fleet, sent = self.server.fleet, 1
        while True:
            if is_slices and self.server.version > sent:
                sent += 1
                for number in range(fleet.size):
                    self.wfile.write(f'{{"type":"MODIFIED","object":{fleet.slice_text(number, sent)}}}\n'.encode())
                self.wfile.flush()
            time.sleep(0.1)

    def _whole(self, text: str) -> None:
        body = text.encode()
        self.send_response_only(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def serve(process: Connection, nodes: int) -> None:
    """Run the API server. Every message on the pipe makes all slices change once more."""
    server = _SliceServer(Fleet(nodes))
    process.send((server.server_address[1], server.fleet.devices))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while process.recv():
        server.version += 1
