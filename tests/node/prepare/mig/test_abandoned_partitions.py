"""Partitions that NVIDIA's driver made and left: destroyed if they are certainly unused, and never otherwise."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from dra_driver.base.errors import HardwareError
from dra_driver.node.neighbours.device_plugin import read_checkpoint
from dra_driver.node.prepare.steps.standing_partitions import AbandonedPartitions
from tests.support.plugin.mig_parts import WHOLE, MigRig, small
from tests.support.plugin.nvidia_checkpoint import write_checkpoint

DRIVER = "gpu.nvidia.com"


def foreign(start: int) -> str:
    return f"gpu-0-mig-1g10gb-19-{start}"


class NodeWithLeftPartitions:
    """A node on which NVIDIA's driver made partitions at `starts` of the first GPU, one for each claim c<start>."""

    def __init__(self, root: Path, *starts: int) -> None:
        self.rig = MigRig(root)
        self.made = {start: self.rig.by_hand("1g.10gb", start) for start in starts}
        self.alive: set[str] = set()
        self.messages: list[str] = []
        self.file = self.rig.data / "checkpoint.json"
        self.record(*starts)

    def record(self, *starts: int, boot_id: str = "boot-1", **more: Any) -> None:
        uuid = self.rig.gpu().uuid
        claims = {f"c{start}": [(foreign(start), self.made[start].uuid, uuid)] for start in starts}
        write_checkpoint(self.file, claims, boot_id=boot_id, **more)

    def destroy(self) -> int:
        """Do what the reaper does, until there is nothing more to do."""
        rig, abandoned = self.rig, self.abandoned()
        count, more = 0, 1
        while more:
            more = abandoned.destroy()
            count += more
        rig.scan()
        rig.repair.settle_modes()
        rig.scan()
        return count

    def abandoned(self) -> AbandonedPartitions:
        rig = self.rig
        return AbandonedPartitions(
            rig.data,
            driver=DRIVER,
            hardware=rig.hardware,
            ledger=rig.ledger,
            locks=rig.locks,
            boot_id=rig.boot_id,
            claims=SimpleNamespace(may_hold=self.alive.__contains__),
            events=SimpleNamespace(send=lambda _, message: self.messages.append(message)),
        )


@pytest.fixture
def left(tmp_path: Path):
    made = NodeWithLeftPartitions(tmp_path, 0, 3)
    yield made
    made.rig.close()


def test_partitions_of_ended_claims_are_destroyed_and_the_whole_gpu_is_offered_again(
    left: NodeWithLeftPartitions,
) -> None:
    assert left.rig.names() == [small(0), small(3)]
    assert left.destroy() == 2
    left.rig.assert_untouched()
    assert WHOLE in left.rig.names()
    assert small(3) in left.rig.names()
    assert not left.file.exists()
    assert left.messages[0].endswith("made by another driver for claim default/name-of-c0, which has ended")


def test_a_partition_whose_claim_still_exists_stays_and_so_does_the_checkpoint(left: NodeWithLeftPartitions) -> None:
    left.alive.add("c3")
    assert left.destroy() == 1
    assert left.rig.partitions_made() == [(0, "1g.10gb", 3)]
    assert left.rig.modes() == [True, False]
    assert left.file.exists()
    left.alive.clear()
    assert left.destroy() == 1
    left.rig.assert_untouched()


def test_a_partition_with_a_process_stays_until_it_ends(
    left: NodeWithLeftPartitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(left.rig.hardware, "processes", lambda *_: (4711,))
        assert left.destroy() == 0
    assert len(left.rig.partitions_made()) == 2
    assert left.destroy() == 2


def test_a_partition_whose_processes_are_not_known_stays(
    left: NodeWithLeftPartitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> tuple[int, ...]:
        raise HardwareError("processes-unreadable", "no list")

    monkeypatch.setattr(left.rig.hardware, "processes", fail)
    assert left.destroy() == 0
    assert len(left.rig.partitions_made()) == 2
    assert left.file.exists()


def test_a_gpu_with_a_partition_that_the_checkpoint_does_not_name_is_left_alone(left: NodeWithLeftPartitions) -> None:
    left.rig.by_hand("1g.10gb", 6)
    assert left.destroy() == 0
    assert len(left.rig.partitions_made()) == 3
    assert left.rig.ledger.modes("boot-1") == frozenset()


def test_a_checkpoint_of_an_earlier_boot_is_ignored(left: NodeWithLeftPartitions) -> None:
    left.record(0, 3, boot_id="boot-0")
    assert left.destroy() == 0
    assert len(left.rig.partitions_made()) == 2


def test_a_partition_that_a_claim_of_ours_got_meanwhile_stays_until_the_claim_ends(
    left: NodeWithLeftPartitions,
) -> None:
    left.rig.now_prepare("u1", small(3))
    assert left.destroy() == 1
    assert left.rig.partitions_made() == [(0, "1g.10gb", 3)]
    left.rig.unprepare("u1")
    assert left.destroy() == 1
    left.rig.assert_untouched()


def test_the_partition_of_an_unfinished_preparation_is_found_by_its_placement(left: NodeWithLeftPartitions) -> None:
    left.record(0, started={"c3": foreign(3)})
    assert left.destroy() == 2
    left.rig.assert_untouched()


def test_a_partition_that_is_made_later_in_the_same_place_counts_as_an_administrators(
    left: NodeWithLeftPartitions,
) -> None:
    assert left.destroy() == 2
    again = left.rig.by_hand("1g.10gb", 0)
    assert again.uuid == left.made[0].uuid
    assert left.destroy() == 0
    assert left.rig.partitions_made() == [(0, "1g.10gb", 0)]


class Crash(BaseException):
    """The end of a process, as far as files and hardware see it."""


def crashing_at(line: int):
    """Return a tracer that raises before the given line of the module under test."""
    left = line

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(("abandoned_partitions.py", "simulated/partitioning.py")):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                raise Crash
        return trace

    return trace


def test_a_crash_at_any_line_leaves_nothing_that_the_next_agent_does_not_destroy(tmp_path: Path) -> None:
    kills = 0
    for line in range(5, 10_000, 23):
        left = NodeWithLeftPartitions(tmp_path / str(line), 0, 3)
        sys.settrace(crashing_at(line))
        try:
            left.destroy()
        except Crash:
            kills += 1
            is_over = False
            left.rig.locks.close()  # as the kernel does when a process dies, even at the end of a `with` block
        else:
            is_over = True
        finally:
            sys.settrace(None)
        left.rig.restart()
        left.destroy()
        left.rig.assert_untouched()
        assert WHOLE in left.rig.names()
        left.rig.close()
        if is_over:
            break
    assert kills > 5


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "[]",
        '{"v2": 3}',
        '{"v2": {"preparedClaims": []}}',
        '{"v2": {"nodeBootID": "boot-1", "preparedClaims": {"c": {"preparedDevices": [null, {"devices": [3]}]}}}}',
        '{"v2": {"nodeBootID": "boot-1", "preparedClaims": {"c": {"checkpointState": "PrepareStarted"}}}}',
    ],
)
def test_a_checkpoint_that_cannot_be_understood_names_no_partition(tmp_path: Path, text: str) -> None:
    (tmp_path / "checkpoint.json").write_text(text)
    claims = read_checkpoint(tmp_path / "checkpoint.json", driver=DRIVER, boot_id="boot-1")
    assert [partition for claim in claims for partition in claim.partitions] == []


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_text(""),
    "half written": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "zeros": lambda path: path.write_bytes(bytes(4096)),
    "too deep": lambda path: path.write_text("[" * 100_000),
    "too large": lambda path: path.write_bytes(b" " * (17 << 20)),
    "folder": _folder,
    "link": _link,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_destroys_nothing_and_is_reported_once(
    left: NodeWithLeftPartitions, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    DAMAGE[damage](left.file)
    abandoned = left.abandoned()
    for _ in range(3):
        assert abandoned.destroy() == 0
    assert len(left.rig.partitions(0)) == 2
    assert [one.levelname for one in caplog.records if "can't be read" in one.message] == ["WARNING"]


def test_a_checkpoint_of_a_release_that_made_no_partitions_names_none(tmp_path: Path) -> None:
    mig = {"info": {"uuid": "MIG-1", "parentUUID": "GPU-1"}, "device": {"DeviceName": foreign(0)}}
    claim = {"preparedDevices": [{"devices": [{"gpu": None, "mig": mig}]}]}
    (tmp_path / "checkpoint.json").write_text(json.dumps({"v1": {"preparedClaims": {"c": claim}}}))
    [found] = read_checkpoint(tmp_path / "checkpoint.json", driver=DRIVER, boot_id="boot-1")
    assert found.partitions == ()
