"""The message about claims that hold the devices of another claim."""

from __future__ import annotations

from dra_driver.node.ledger.record import ClaimRecord, ClaimState
from dra_driver.node.ledger.unreleased import Conflict, by_holder


def record(uid: str) -> ClaimRecord:
    return ClaimRecord(
        uid=uid, namespace="ns", name=uid, state=ClaimState.PREPARED, boot_id="b", allocation={}, steps=()
    )


def test_each_holder_is_named_once_and_memory_slices_only_of_gpus_that_are_not_named():
    u1, u2 = record("u1"), record("u2")
    whole = [Conflict(name, u1) for name in ("gpu-a/memory-slice-0", "gpu-a", "gpu-a/memory-slice-1", "gpu-b")]
    parts = [Conflict(f"gpu-c/memory-slice-{i}", u2) for i in (10, 2)]
    assert [(text, conflict.record.uid) for text, conflict in by_holder([*parts, *whole])] == [
        ("gpu-a, gpu-b", "u1"),
        ("gpu-c (memory-slice-2, memory-slice-10)", "u2"),
    ]


def test_pods_that_outlive_their_claim_are_holders_of_their_own():
    u1 = record("u1")
    assert len(by_holder([Conflict("gpu-a", u1), Conflict("gpu-a", u1, ("pod",)), Conflict("gpu-b", u1)])) == 2
