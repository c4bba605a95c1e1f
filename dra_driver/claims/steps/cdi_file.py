"""The step that writes a claim's CDI file, with the edits of each device that no other step makes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from dra_driver.claims.allocated.claim_on_node import CdiNames, ClaimOnNode
from dra_driver.claims.reports.metadata import RequestMetadata, plan_metadata
from dra_driver.model.edits import Edits


@dataclass(frozen=True, slots=True)
class CdiFileStep:
    """Write one CDI file, and the metadata files that it mounts; undone by removing them.

    `made` names the devices, by their name in the file, whose edits are known only after an earlier step has made
    them. Without `metadata`, containers get no files about their devices.
    """

    kind: ClassVar[str] = "cdi-file"

    file: str
    cdi_kind: str
    devices: Mapping[str, Edits]
    common: Edits
    made: Mapping[str, str] = field(default_factory=dict)
    metadata: tuple[RequestMetadata, ...] = ()

    @property
    def key(self) -> str:
        """The name of what the step changes, unique within its kind."""
        return self.file


def plan_cdi_file(
    on_node: ClaimOnNode, edits: Mapping[str, Edits], common: Edits, names: CdiNames, metadata_of: str
) -> CdiFileStep:
    """Return the step of a claim, which is its last: it needs the devices that the steps before it have made.

    `edits` are those of each device that no step makes, by name, and `common` those that all devices need.
    `metadata_of` is the driver's name where containers get files about their devices, else "".
    """
    made = on_node.made
    return CdiFileStep(
        file=names.file(on_node.claim.uid),
        cdi_kind=names.kind,
        devices={one.in_file: edits[one.device.name] for one in on_node.results if one.device.name not in made},
        common=common,
        made={one.in_file: one.device.name for one in on_node.results if one.device.name in made},
        metadata=plan_metadata(on_node, metadata_of) if metadata_of else (),
    )
