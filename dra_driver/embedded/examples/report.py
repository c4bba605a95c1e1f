"""Report: what became of one example, its claims, its pods and their devices. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.claims.reports.metadata_reading import DescribedDevice
from dra_driver.embedded.examples.reading import Example
from dra_driver.embedded.kubelet.container_view import ContainerView
from dra_driver.embedded.scheduling.placement import Choice
from dra_driver.model.wire import DeviceWire


@dataclass(frozen=True, slots=True)
class ChosenDevice:
    """One device of a claim: the allocator's choice, and the device as it is published."""

    choice: Choice
    device: DeviceWire


@dataclass(slots=True)
class ClaimReport:
    """What happened to one claim. `label` is its name in expectations."""

    label: str
    name: str
    namespace: str
    uid: str
    held: tuple[ChosenDevice, ...] = ()
    refusal: str = ""
    device_status: Mapping[str, str] = field(default_factory=dict)  # what status.devices reports


@dataclass(slots=True)
class PodReport:
    """What happened to one pod. `failure` is why its containers did not start; "" if they could."""

    name: str
    is_placed: bool = False
    failure: str = ""
    containers: dict[str, ContainerView] = field(default_factory=dict)
    # the devices that are described in the files of each container
    described: dict[str, tuple[DescribedDevice, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class ExampleReport:
    """What happened to one example."""

    example: Example
    claims: list[ClaimReport] = field(default_factory=list)
    pods: list[PodReport] = field(default_factory=list)
    labels: Mapping[str, str] = field(default_factory=dict)  # of the node
    refused: dict[str, str] = field(default_factory=dict)  # the claims that were refused, with the reasons
    unmet: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def is_good(self) -> bool:
        """Whether every expectation was met and nothing was left behind."""
        return not self.unmet and not self.left

    @property
    def files(self) -> list[Path]:
        """The CDI files that contain the devices of the containers."""
        views = [view for pod in self.pods for view in pod.containers.values()]
        return list(dict.fromkeys(path for view in views for path in view.files))
