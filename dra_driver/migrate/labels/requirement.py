"""A requirement on a label of GPU feature discovery, and its translation into CEL.

Source: Kubernetes, NodeSelectorOperator (a missing label matches NotIn and DoesNotExist only).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dra_driver.migrate.device_kind import DeviceKind
from dra_driver.model.names import NVIDIA_DRIVER

DOMAIN = "nvidia.com/"
ATTRIBUTES = f'device.attributes["{NVIDIA_DRIVER}"]'
CAPACITY = f'device.capacity["{NVIDIA_DRIVER}"]'
SHARED = "-SHARED"
MIG_INFIX = "-MIG-"
IN, NOT_IN, EXISTS, ABSENT, ABOVE, BELOW = "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"


@dataclass(frozen=True, slots=True)
class LabelRequirement:
    """One requirement on a node's label."""

    label: str
    operator: str
    values: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The label without its domain."""
        return self.label.removeprefix(DOMAIN)

    @property
    def words(self) -> str:
        """The requirement as a report shows it."""
        if self.operator == IN and len(self.values) == 1:
            return f"{self.label}: {self.values[0]}"
        return f"{self.label} {self.operator} {', '.join(self.values)}".strip()


@dataclass(frozen=True, slots=True)
class NotExpressible:
    """The reason why no expression can state a requirement, and the code of the loss that reports it."""

    why: str
    code: str = "label-kept"


Translation = str | NotExpressible
Translate = Callable[[LabelRequirement, DeviceKind], Translation]
