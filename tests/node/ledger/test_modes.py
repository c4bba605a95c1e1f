"""What the ledger knows of GPUs whose MIG mode this driver switched on, and of which claims have parts of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.base.names import gpu_name
from dra_driver.node.claims.allocated import AllocatedClaim, AllocatedDevice
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.ledger_file import ModeEnd
from dra_driver.node.ledger.record import ClaimRecord, ClaimState

BOOT, GPU, OTHER_GPU = "boot", "0000:1b:00.0", "0001:1b:00.0"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / "ledger.db", boot_id=BOOT)
    yield opened
    opened.close()


def hold(ledger: Ledger, uid: str, *parts: str) -> None:
    """Record a prepared claim with these parts of GPUs."""
    record = ClaimRecord(uid, "ns", uid, ClaimState.PREPARED, BOOT, {}, ())
    claim = AllocatedClaim(uid, "ns", uid, (AllocatedDevice("gpu", "pool", f"mig-of-{uid}"),))
    assert not ledger.intend(record, claim, parts)


def test_a_claim_is_alone_on_the_gpus_whose_mode_is_ours_and_of_which_no_other_claim_has_a_part(ledger: Ledger) -> None:
    for gpu in (GPU, OTHER_GPU):
        ledger.set_mode(gpu, BOOT)
    mine, others = (f"{gpu_name(GPU)}/memory-slice-{n}" for n in range(2))
    hold(ledger, "u1", mine, f"{gpu_name(OTHER_GPU)}/memory-slice-0")
    assert ledger.get_with_modes("u1") == (ledger.get("u1"), {GPU, OTHER_GPU})
    hold(ledger, "u2", others)
    for uid in ("u1", "u2"):
        _, alone_on = ledger.get_with_modes(uid)
        ends = {gpu: ledger.mode_end(gpu, BOOT, other_than=uid) for gpu in (GPU, OTHER_GPU)}
        assert alone_on == {gpu for gpu, end in ends.items() if end is ModeEnd.ALONE}
    assert ledger.get_with_modes("u1")[1] == {OTHER_GPU}
    ledger.set_state("u2", ClaimState.UNPREPARING)  # it still counts: both claims have to see each other's mark
    assert ledger.get_with_modes("u1")[1] == {OTHER_GPU}


@pytest.mark.parametrize("boot_id", [None, "an earlier boot"])
def test_a_claim_is_alone_on_no_gpu_whose_mode_is_not_ours_in_this_boot(ledger: Ledger, boot_id: str | None) -> None:
    ledger.set_mode(GPU, boot_id)
    hold(ledger, "u1", f"{gpu_name(GPU)}/memory-slice-0")
    assert ledger.get_with_modes("u1") == (ledger.get("u1"), frozenset())
    assert ledger.get_with_modes("unknown") == (None, frozenset())
