"""Effects: carries out a plan's steps and undoes recorded ones, each idempotent by reading back.

The only place where `claims` (what to do) and `cdi` (how a file is written) meet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dra_driver.cdi import ids
from dra_driver.cdi.spec import render
from dra_driver.cdi.store import CdiStore
from dra_driver.claims.plan import CdiFileStep
from dra_driver.model.errors import PrepareError, Retry
from dra_driver.model.wire import Wire


@dataclass(frozen=True, slots=True)
class DriverCdiNames:
    """CDI names of one driver, as plans want them."""

    driver: str

    @property
    def kind(self) -> str:
        """Give the kind of all devices that this driver prepares."""
        return ids.kind(self.driver)

    def file(self, uid: str) -> str:
        """Name the file of a claim."""
        return ids.claim_file(self.driver, uid)

    def device(self, uid: str, device: str, share_id: str | None) -> str:
        """Name a device within that file."""
        return ids.device_name(uid, device, share_id)

    def id(self, uid: str, device: str, share_id: str | None) -> str:
        """Give the fully qualified id of that device."""
        return ids.device_id(self.driver, uid, device, share_id)


class Effects:
    """What steps do to the node."""

    def __init__(self, store: CdiStore) -> None:
        self._store = store

    def apply(self, steps: Iterable[CdiFileStep]) -> bool:
        """Carry out steps in order. Says whether anything had to be changed. Raises: PrepareError."""
        changed = False
        for step in steps:
            changed |= self._store.write(step.file, render(step.cdi_kind, step.devices, step.common))
        return changed

    def undo(self, steps: Iterable[Wire]) -> None:
        """Undo recorded steps, last first.

        Raises: PrepareError, after having undone every other step: "prepare.step-unknown" for one that a newer agent
        recorded.
        """
        unknown = []
        for step in reversed(tuple(steps)):
            if step.get("kind") == CdiFileStep.kind:
                self._store.remove(step["file"])
            else:
                unknown.append(str(step.get("kind")))
        if unknown:
            raise PrepareError(
                "step-unknown",
                f"a newer agent did what this one can't undo: {', '.join(unknown)}",
                hint="run the newer agent again",
                retry=Retry.LATER,
            )
