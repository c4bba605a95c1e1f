"""Calls whose bytes are recorded: what each of them left in the ledger, in the CDI folder and in the log.

    python -m tests.node.support.recorded_calls      record them again, after a change of bytes that was meant

`test_recorded_bytes` runs the same calls and compares. Times and paths of this machine are masked.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dra_driver.base.errors import DriverError
from dra_driver.base.wire import MpsSettings
from tests.support.plugin.mig_parts import OTHER, WHOLE, MigRig, large, small
from tests.support.plugin.parts import Rig, claim_wire, result
from tests.support.plugin.sharing_parts import POD, SharingRig, mps, replica, time_slicing
from tests.support.waiting import until

FILE = Path(__file__).with_name("recorded_calls.json")
TABLES = ("claims", "holds", "mig_modes", "device_effects", "effect_holds", "kept_back")
SHARE = "ab12cd34-0000-4000-8000-00000000000{}"
_WAITED = re.compile(r"held after \d+ s")
_UUID = re.compile(r"MIG-[0-9a-f-]{36}")


class Recording:
    """What calls on one rig left behind, one entry a call; of files and tables only those that the call changed."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.entries = rig, []
        self._left: dict[str, Any] = {}
        self._seen: dict[str, dict[str, Any]] = {}
        self._uuids: dict[str, str] = {}
        self.pods_end = False  # whether pods have ended when their claims are unprepared

    def call(self, name: str, work: Callable[[], Any]) -> None:
        """Run a call; record its answer or its error, the rows it went through, the files and the log."""
        rows: list[dict[str, Any]] = []
        with _logged() as logged, self._watched(rows):
            try:
                answer = repr(work())
            except DriverError as error:
                answer = f"{type(error).__name__} {error.code} {error.retry}: {error}"
        left = {"files": self._files(), **{table: self._rows(table) for table in TABLES}}
        changed = {name: content for name, content in left.items() if content != self._left.get(name)}
        self._left = left
        self.entries.append(self._masked({"call": name, "answer": answer, "log": logged, "rows": rows, **changed}))

    def prepare(self, uid: str, seconds: float = 60.0) -> None:
        self.call(f"prepare {uid}", lambda: self.rig.prepare(uid, seconds))

    def prepare_in_vain(self, uid: str) -> None:
        """Prepare a claim whose device another claim holds."""
        self.prepare(uid, 0.3)

    def unprepare(self, uid: str) -> None:
        self.call(f"unprepare {uid}", lambda: self._unprepare(uid))

    def _unprepare(self, uid: str) -> None:
        self.rig.unprepare(uid)
        # A thread looks at once for users of the device's node, and for processes of pods; there are none.
        until(lambda: all(self._stays(row) for row in self._rows("kept_back")), what="devices released")

    def _stays(self, row: dict[str, Any]) -> bool:
        return not self.pods_end and row["pods"] != "[]"

    @contextmanager
    def _watched(self, rows: list[dict[str, Any]]) -> Iterator[None]:
        """Keep each row of a claim that a transaction adds or changes."""
        ledger = self.rig.ledger
        use = ledger._use

        def watched(job: Any, **more: Any) -> Any:
            answer = use(job, **more)
            for row in self._rows("claims"):
                if row != self._seen.get(row["uid"]):
                    self._seen[row["uid"]] = row
                    rows.append(row)
            return answer

        ledger._use = watched  # type: ignore[method-assign]
        try:
            yield
        finally:
            del ledger._use

    def _rows(self, table: str) -> list[dict[str, Any]]:
        rows = [dict(row) for row in self.rig.ledger._read(f"SELECT * FROM {table}")]
        return [{key: "SECONDS" if key == "until" else value for key, value in row.items()} for row in rows]

    def _files(self) -> dict[str, str]:
        """Return everything in the CDI folder, the records beside the documents too."""
        folder = self.rig.cdi
        return {path.name: path.read_text() for path in sorted(folder.iterdir())} if folder.exists() else {}

    def _masked(self, entry: dict[str, Any]) -> dict[str, Any]:
        text = _WAITED.sub("held after SECONDS s", json.dumps(entry).replace(str(self.rig.root), "ROOT"))
        return json.loads(_UUID.sub(self._numbered, text))

    def _numbered(self, found: re.Match[str]) -> str:
        """Number UUIDs of partitions in the order in which they were seen."""
        return self._uuids.setdefault(found[0], f"MIG-number-{len(self._uuids)}")


@contextmanager
def _logged() -> Iterator[list[list[Any]]]:
    """Collect what is logged, as level, message and keys, without the plugin's own threads.

    Lines of the threads that make partitions on several GPUs come last, in alphabetical order.
    """
    lines: list[list[Any]] = []
    beside: list[list[Any]] = []
    handler = logging.Handler()
    caller = logging.makeLogRecord({}).thread

    def emit(record: logging.LogRecord) -> None:
        line = [record.levelname, record.getMessage(), sorted(getattr(record, "dra_fields", {}))]
        if record.thread == caller:
            lines.append(line)
        elif (record.threadName or "").startswith("partitions"):
            beside.append(line)

    handler.emit = emit  # type: ignore[method-assign]
    logger = logging.getLogger("dra_driver")
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        lines += sorted(beside)
        logger.removeHandler(handler)
        logger.setLevel(before)


def whole_devices(root: Path) -> Recording:
    """Whole GPUs and standing partitions: repeated, in use, kept back, re-allocated, after a reboot, with no ledger."""
    rig = Rig(root)
    done = Recording(rig)
    rig.repair._release_watch.close()  # what is kept back stays
    pod = POD.format(1)
    (rig.root / "pods" / pod).mkdir(parents=True)
    rig.allocate("u1", "gpu-0", "mig-1", pods=(pod,))
    rig.api.put(claim_wire("admin", result("gpu-0", adminAccess=True)))
    rig.allocate("rival", "gpu-0")
    rig.api.put(claim_wire("stray", {**result("gpu-1"), "pool": "other"}))
    rig.allocate("unknown", "gpu-9")
    for uid in ("u1", "u1", "admin"):
        done.prepare(uid)
    done.prepare_in_vain("rival")
    done.prepare("stray")
    rig.allocate("u1", "gpu-2", pods=(pod,))
    done.prepare("u1")
    done.prepare_in_vain("rival")
    rig.reboot()
    done.prepare("u1")
    for path in rig.data.glob("ledger.db*"):
        path.unlink()
    for uid in ("u1", "admin"):
        done.unprepare(uid)
    done.prepare("rival")
    done.unprepare("rival")
    rig.close()
    return done


def partitions(root: Path) -> Recording:
    """Partitions that are made, an administrator's, whole GPUs with MIG mode on, a lost ledger, newer steps."""
    rig = MigRig(root)
    done = Recording(rig)
    rig.allocate("made", small(0), small(2, OTHER))
    rig.by_hand("1g.10gb", 6)
    rig.allocate("by-hand", small(6))
    rig.allocate("rival", large(0))
    for uid in ("made", "made", "by-hand"):
        done.prepare(uid)
    done.prepare_in_vain("rival")
    kind = '"kind":"mig-partition"'
    rig.ledger._execute("UPDATE claims SET steps = replace(steps, ?, ?)", (kind, f'{kind},"later":7'))
    done.call("refresh", rig.repair.refresh_cdi)
    rig.hardware.destroy_partition(rig.gpu(0), rig.partitions()[0].uuid, 5)
    done.prepare("made")
    done.unprepare("by-hand")
    rig.ledger.close()
    for path in rig.data.glob("ledger.db*"):
        path.unlink()
    rig.restart()
    done.unprepare("made")
    rig.hardware.set_mig_mode(rig.gpu(1), True, 5)
    rig.scan()
    rig.allocate("whole", OTHER)
    done.prepare("whole")
    done.prepare("whole")
    rig.ledger._execute("UPDATE claims SET steps = replace(steps, 'cdi-file', 'teleport')", ())
    done.unprepare("whole")
    rig.ledger._execute("UPDATE claims SET steps = replace(steps, 'teleport', 'cdi-file')", ())
    done.unprepare("whole")
    rig.close()
    return done


def time_slices(root: Path) -> Recording:
    """Time slices of a whole GPU and of a partition that is made, and the configs of claim and class."""
    rig = SharingRig(root)
    done = Recording(rig)
    rig.allocate("long", WHOLE, configs=(time_slicing("Long"),))
    rig.allocate("plain", OTHER, configs=(time_slicing("Default", source="FromClass"),))
    for uid in ("long", "long", "plain"):
        done.prepare(uid)
    rig.ledger.close()
    for path in rig.data.glob("ledger.db*"):
        path.unlink()
    rig.restart()
    done.call("recovered", rig.repair.run)
    for uid in ("long", "long", "plain"):
        done.unprepare(uid)
    rig.close()
    return done


def daemons(root: Path) -> Recording:
    """Devices under MPS with memory limits, on replicas, shares and a partition that is made; refusals; lost ledger."""
    rig = SharingRig(root, MpsSettings(50, 1 << 30), is_hard=True)
    done = Recording(rig)
    done.pods_end = True
    pods = tuple(rig.pod(number) for number in (1, 2))
    rig.allocate("one", replica(0), pods=pods[:1])
    rig.allocate("two", replica(1), pods=pods)
    rig.allocate_share("share", SHARE.format(1), SHARE.format(2), memory="6Gi", pods=pods[1:])
    rig.allocate("cut", small(1, OTHER), configs=(mps("MigDeviceConfig", defaultActiveThreadPercentage=20),))
    other = claim_wire("other", result(replica(2)), pods=pods[:1])
    other["metadata"]["namespace"] = "another"
    rig.api.put(other)
    rig.allocate("limitless", replica(3))
    for uid in ("one", "two", "two", "share", "limitless"):
        done.prepare(uid)
    done.call("prepare other", lambda: _prepare(rig, "another", "other"))
    done.unprepare("one")
    done.unprepare("share")
    done.prepare("cut")
    rig.settings = MpsSettings(20)
    rig.scan()
    rig.allocate("differs", replica(0), pods=pods[:1])
    done.prepare("differs")
    done.prepare("two")
    rig.ledger.close()
    for path in rig.data.glob("ledger.db*"):
        path.unlink()
    rig.restart()
    done.call("recovered", rig.repair.run)
    done.prepare("two")
    for uid in ("two", "cut"):
        done.unprepare(uid)
    rig.close()
    return done


def _prepare(rig: Rig, namespace: str, uid: str) -> Any:
    return rig.preparer.prepare(namespace, f"claim-{uid}", uid, rig.soon(60.0))  # type: ignore[attr-defined]


SCENES = (whole_devices, partitions, time_slices, daemons)


def record(scene: Callable[[Path], Recording]) -> list[dict[str, Any]]:
    """Run one scene in a folder of its own and return what its calls left."""
    with tempfile.TemporaryDirectory() as folder:
        return scene(Path(folder)).entries


def _line(entry: dict[str, Any]) -> str:
    return json.dumps(entry, separators=(",", ":"))


def main() -> None:
    found = {scene.__name__: record(scene) for scene in SCENES}
    lines = (f'"{name}": [\n' + ",\n".join(map(_line, entries)) + "\n]" for name, entries in found.items())
    FILE.write_text("{" + ",\n".join(lines) + "}\n")
    sys.stdout.write(f"{FILE.name}: {FILE.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
