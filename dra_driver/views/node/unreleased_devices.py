"""Unreleased devices of a node: claims that were unprepared while containers may still use their devices.

In: the ledger in the agent's data folder. Out: these claims; on a person's order, their devices are released.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dra_driver.model.errors import InputError
from dra_driver.model.machine import read_boot_id
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.ledger.unreleased import UnreleasedClaim


def unreleased_claims(folder: Path, proc: str = "/proc") -> tuple[UnreleasedClaim, ...]:
    """Return the unreleased claims of this boot. Raises: LedgerError."""
    with _ledger(folder, proc, reads_only=True) as (ledger, boot_id):
        return () if ledger is None else _in_force(ledger, boot_id)


def release(folder: Path, device: str, proc: str = "/proc") -> UnreleasedClaim:
    """Release a device, with all devices of its claim, and return that claim; a process may still use them.

    Raises: InputError("input.device") if the device is not unreleased; LedgerError.
    """
    with _ledger(folder, proc, reads_only=False) as (ledger, boot_id):
        claims = () if ledger is None else _in_force(ledger, boot_id)
        found = next((claim for claim in claims if device in claim.devices), None)
        if ledger is None or found is None:
            raise InputError("device", f"{device} does not wait for a container", hint="dra-driver release lists those")
        ledger.unreleased.forget([found])
        return found


def device_names(claim: UnreleasedClaim) -> str:
    """Return the names of a claim's devices, without the parts of GPUs that they occupy."""
    return ", ".join(name for name in claim.devices if "/" not in name)


def reason(claim: UnreleasedClaim) -> str:
    """Return why a claim's devices are not released yet, as one clause."""
    if claim.users:
        return f"it is open in {', '.join(claim.users)}"
    if claim.pods:
        return f"containers of pod {', '.join(claim.pods)} may still run"
    return "a container may still have it"


def _in_force(ledger: Ledger, boot_id: str) -> tuple[UnreleasedClaim, ...]:
    return tuple(claim for claim in ledger.unreleased.of_boot(boot_id) if claim.is_in_force)


@contextmanager
def _ledger(folder: Path, proc: str, *, reads_only: bool) -> Iterator[tuple[Ledger | None, str]]:
    path = folder / "ledger.db"
    if not path.exists():
        yield None, ""
        return
    boot_id = read_boot_id(proc)
    ledger = Ledger(path, boot_id=boot_id, reads_only=reads_only)
    try:
        yield ledger, boot_id
    finally:
        ledger.close()
