"""A real agent whose API server lies: its memory stays far below the 256 MiB of its container, and Unprepare works."""

from __future__ import annotations

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.simulator.http import Response, Stream
from dra_driver.simulator.plugin_watcher import ClaimRef
from tests.node.daemon.support.claims import claim
from tests.support.agents.agent_process import NODE, stage
from tests.support.waiting import until

LIMIT_MIB = 180  # of the container's 256
LISTS = b"[" + b"[]," * ((7 << 20) // 3) + b"0]"


@pytest.fixture
def here():
    with stage() as it:
        yield it


class Liar:
    """Takes the place of the server's answers, once `lies` is set."""

    def __init__(self, here, monkeypatch, lie) -> None:
        self.lies, self.told = threading.Event(), 0
        self._honest, self._lie = here.api._dispatch.answer, lie
        monkeypatch.setattr(here.api._dispatch, "answer", self._answer)

    def _answer(self, request):
        lie = self._lie(request) if self.lies.is_set() else None
        self.told += lie is not None
        return self._honest(request) if lie is None else lie


def slice_of_node(number: int, size: int) -> bytes:
    spec = {"driver": NVIDIA_DRIVER, "nodeName": NODE, "pool": {"name": f"p{number}", "generation": 1}}
    metadata = {"name": f"s{number}", "uid": f"u{number}", "resourceVersion": str(10**9 + number)}
    return json.dumps({"metadata": {**metadata, "annotations": {"a": "x" * size}}, "spec": spec}).encode()


def in_watch(size: int):
    """Return a lie: a watch with slice after slice of this node, each another one."""

    def events():
        for number in itertools.count():
            yield b'{"type":"ADDED","object":' + slice_of_node(number, size) + b"}\n"
            if number * size > 300 << 20 or number > 200_000:
                return

    def lie(request):
        is_watch = request.path.endswith("/resourceslices") and request.query.get("watch")
        return Stream(events()) if is_watch else None

    return lie


def in_list(request):
    """Return page after page of slices of this node."""
    if request.method != "GET" or not request.path.endswith("/resourceslices") or request.query.get("watch"):
        return None
    first = int(request.query.get("continue", "0"))
    items = b",".join(slice_of_node(first + number, 200_000) for number in range(20))
    metadata = json.dumps({"resourceVersion": "1", "continue": str(first + 20)}).encode()
    return Response(200, b'{"metadata":' + metadata + b',"items":[' + items + b"]}")


def of_lists(request):
    """Answer every GET with millions of empty lists."""
    return Response(200, b'{"metadata":' + LISTS + b"}") if request.method == "GET" else None


def of_lists_in_lines(request):
    if request.query.get("watch"):
        return Stream(iter([b'{"type":"ADDED","object":' + LISTS[: 3 << 20] + b"0]}\n"] * 50))
    return None


LIES = {
    "small slices in the watch": in_watch(100),
    "slices of 1 MiB in the watch": in_watch(1 << 20),
    "a list without an end": in_list,
    "empty lists in every answer": of_lists,
    "empty lists in the watch": of_lists_in_lines,
}


def peak_mib(agent) -> float:
    status = Path(f"/proc/{agent.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_an_api_server_that_lies_does_not_fill_the_memory_and_unprepare_works(here, monkeypatch, lie):
    agent = here.start("simulated:dgx-h100", is_warm=False)
    plugin = here.kubelet.wait_registered(NVIDIA_DRIVER)
    until(lambda: len(here.devices()) == 8, "8 devices", timeout_s=150)
    held = claim(here, here.devices()[0], "held")
    assert not isinstance(plugin.prepare([held])[held.uid], str)
    until(lambda: here.api.open_watches == 1)
    liar = Liar(here, monkeypatch, lie)
    liar.lies.set()
    here.api.expire_watches()  # so that the agent lists again
    until(lambda: liar.told >= 1)
    others = [ClaimRef("default", f"c{number}", f"uid-{number}") for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda one: plugin.prepare([one], timeout_s=120), others))
    until(lambda: liar.told >= 2)
    assert plugin.unprepare([held]) == {held.uid: ""}
    assert agent.poll() is None
    assert peak_mib(agent) < LIMIT_MIB, here.log()[-2000:]
    assert "Traceback" not in here.log()
