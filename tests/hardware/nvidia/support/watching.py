"""The real vendor over the fake library, and all that it reports about the health of two GPUs."""

import threading
from contextlib import contextmanager

from dra_driver.hardware.nvidia.hardware import NvidiaHardware
from tests.support.fake_nvml import State, build, hgx_h100
from tests.support.nodes.fake_node import FakeNode
from tests.support.waiting import until


class Watching:
    """Two H100s, a vendor that watches them, and all that it has reported."""

    def __init__(self, folder, monkeypatch):
        self.node = FakeNode(folder / "node")
        self.node.load_driver()
        self.state = State(gpus=hgx_h100(2))
        for gpu in self.state.gpus:
            self.node.add_gpu(gpu.pci, gpu.minor)
            gpu.report_health(recovery_action=0, remap_pending=0, remap_failed=0)
        self.state.write(folder / "state")
        library = build(folder / "lib")
        monkeypatch.setenv("FAKE_NVML_STATE", str(folder / "state"))
        monkeypatch.setattr("dra_driver.hardware.nvidia.library.candidates", lambda _: [str(library)])
        self.notified = threading.Event()
        self.hardware = NvidiaHardware(self.node.roots, call_timeout_s=1.0)
        self.hardware.watch_health(self.notified.set, log_position=-1)
        until(self.has_opened)
        self.xids, self.vitals, self.silent = [], {}, 0.0
        self.until(lambda: len(self.vitals) == 2)

    def has_opened(self):
        """Look at the GPUs, and return whether the library answered, which takes a while on a busy machine."""
        return not self.hardware.discover().waiting_for

    def look(self, *, is_urgent=False):
        report = self.hardware.health(is_urgent=is_urgent, patience_s=5.0)
        self.xids += [(xid.gpu, xid.code, xid.gi_id) for xid in report.xids]
        self.vitals |= {one.gpu: one for one in report.readings}
        self.silent = report.silent_s

    def until(self, condition):
        until(lambda: self.look() or condition(), what=(self.xids, self.vitals))


@contextmanager
def healed(it):
    """Let a test use it, then let all calls return and end the watch."""
    yield it
    for gpu in it.state.gpus:
        gpu.heal()
    it.state.write()
    it.hardware.close()
