"""Meter snapshots for tests: GPUs as the simulator has them, readings, holders, and samples read back from the text."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.hardware.metered import Measure, MeterReport, Reading
from dra_driver.hardware.nvidia.dcgm_names import DCGM_NAMES
from dra_driver.hardware.simulated.profile import load_profile
from dra_driver.hardware.simulated.profile_facts import facts_of
from dra_driver.node.metering.billing import default_selection
from dra_driver.node.metering.holders import Holder
from dra_driver.node.metering.series import LabelStyle, MeterSnapshot, lines_of
from dra_driver.node.neighbours.pod_resources import ClaimUser

USUAL = default_selection(DCGM_NAMES)
STYLE = LabelStyle("node-1", "gpu.nvidia.com", DCGM_NAMES, fields=USUAL.labels)
_SAMPLE = re.compile(r"^(?P<name>\w+)(\{(?P<labels>.*)\})? (?P<value>[-+.\de]+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass
class Sample:
    name: str
    labels: dict[str, str]
    value: float


def samples(lines) -> list[Sample]:
    """Read samples back; fail on a line that is not a sample."""
    found = []
    for line in lines if not isinstance(lines, bytes) else lines.decode().splitlines():
        if not line.startswith("#"):
            match = _SAMPLE.match(line)
            assert match, line
            found.append(Sample(match["name"], dict(_LABEL.findall(match["labels"] or "")), float(match["value"])))
    return found


def gpus(profile: str = "dgx-h100"):
    return facts_of(load_profile(profile), "node-1").gpus


def holder(name: str, *, uid: str = "", pod: str = "", share: str = "", device: str = "gpu-0000-1b-00-0") -> Holder:
    users = (ClaimUser(pod, "main"),) if pod else ()
    pods = (uid,) if uid else ()
    names = ((uid, pod),) if uid and pod else ()
    return Holder(
        f"uid-{name}", "team", name, device, "node-1/gpu.nvidia.com", share, "gpu.nvidia.com", pods, names, users
    )


@dataclass
class Made:
    """A snapshot under construction."""

    gpus: tuple = field(default_factory=gpus)
    readings: list[Reading] = field(default_factory=list)
    holders: dict = field(default_factory=dict)
    last_xids: dict = field(default_factory=dict)
    repeats_gpu: bool = False
    style: LabelStyle = STYLE
    proc: Path = Path("/nonexistent")

    def read(self, index: int, values: dict[Measure, float], gi_id: int | None = None, processes=None) -> None:
        self.readings.append(Reading(self.gpus[index].pci_address, 1000.0, values, gi_id, processes))

    def snapshot(self) -> MeterSnapshot:
        report = MeterReport(tuple(self.readings), {}, self.last_xids)
        return MeterSnapshot(self.gpus, "580.126.20", report, self.holders, self.style, self.proc, self.repeats_gpu)

    def samples(self, name: str = "", names=USUAL.names) -> list[Sample]:
        return [one for one in samples(lines_of(names, self.snapshot())) if one.name == name or not name]
