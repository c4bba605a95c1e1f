"""The step that writes a claim's CDI file. It comes last, so `plan` makes it from what the whole plan is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from dra_driver.claims.reports.metadata import RequestMetadata
from dra_driver.inventory.device import Device
from dra_driver.model.edits import Edits


@dataclass(frozen=True, slots=True)
class CdiFileStep:
    """Write one CDI file, and the metadata files that it mounts; undone by removing them.

    `made` names the devices, by their name in the file, whose edits are known only after an earlier step has made
    them. Without `metadata`, containers get no files about their devices. `standing` are the partitions, without those
    with admin access, that no step makes: they existed when the claim was planned.
    """

    kind: ClassVar[str] = "cdi-file"

    file: str
    cdi_kind: str
    devices: Mapping[str, Edits]
    common: Edits
    made: Mapping[str, str] = field(default_factory=dict)
    metadata: tuple[RequestMetadata, ...] = ()
    standing: tuple[Device, ...] = ()

    @property
    def key(self) -> str:
        """The name of what the step changes, unique within its kind."""
        return self.file
