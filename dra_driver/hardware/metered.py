"""Metered: what a vendor measures of its GPUs, frozen. The name of each quantity ends in its unit.

A GPU is named by its PCI address, as in `GpuFacts.pci_address`; a GPU instance by that and its id. A quantity that the
hardware or the driver does not report is missing from the values: it is never 0 instead. Times are seconds since 1970.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from dra_driver.hardware.facts import GpuFacts, PartitionFacts

# Samples as lines of Prometheus' text format 0.0.4, for families with thousands of samples: labels are turned into text
# once and used for many.


class SampleKind(enum.StrEnum):
    """The types of families that are written here."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class FamilyHead:
    """The head of a family, which is written once.

    The name of a counter is written unchanged, whatever its suffix.
    """

    name: str
    kind: SampleKind
    meaning: str

    def lines(self) -> Iterator[str]:
        """Yield the lines that precede the family's samples."""
        meaning = self.meaning.replace("\\", "\\\\").replace("\n", "\\n")
        yield f"# HELP {self.name} {meaning}"
        yield f"# TYPE {self.name} {self.kind}"


def labels_text(pairs: Iterable[tuple[str, str]]) -> str:
    """Return label pairs as they are between the braces; a label without a value is left out.

    >>> labels_text([("gpu", "0"), ("pod", ""), ("modelName", "NVIDIA L4")])
    'gpu="0",modelName="NVIDIA L4"'
    """
    return ",".join([f'{name}="{_escaped(value)}"' for name, value in pairs if value])


def sample_line(name: str, labels: str, value: float) -> str:
    """Return one sample; a whole number is written without a fraction.

    >>> sample_line("power", 'gpu="0"', 312.5), sample_line("up", "", 1.0)
    ('power{gpu="0"} 312.5', 'up 1')
    """
    number = str(int(value)) if value.is_integer() else repr(value)
    return f"{name}{{{labels}}} {number}" if labels else f"{name} {number}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


# What is measured.

Values = Mapping[str, float]
"""Quantities: those of `Measure`, and what only one vendor measures, by a name that the vendor's folder defines."""


class Measure(enum.StrEnum):
    """What can be measured. A ratio is between 0 and 1; a total counts since the driver was loaded."""

    SM_CLOCK_MHZ = "smClockMHz"
    MEMORY_CLOCK_MHZ = "memoryClockMHz"
    TEMPERATURE_C = "temperatureC"
    MEMORY_TEMPERATURE_C = "memoryTemperatureC"
    POWER_W = "powerW"
    ENERGY_MJ_TOTAL = "energyMillijoulesTotal"
    PCIE_REPLAYS_TOTAL = "pcieReplaysTotal"
    GPU_PERCENT = "gpuPercent"
    MEMORY_COPY_PERCENT = "memoryCopyPercent"
    ENCODER_PERCENT = "encoderPercent"
    DECODER_PERCENT = "decoderPercent"
    MEMORY_FREE_BYTES = "memoryFreeBytes"
    MEMORY_USED_BYTES = "memoryUsedBytes"
    MEMORY_RESERVED_BYTES = "memoryReservedBytes"
    NVLINK_KIB_TOTAL = "nvlinkKiBTotal"
    REMAPPED_UNCORRECTABLE_TOTAL = "remappedUncorrectableTotal"
    REMAPPED_CORRECTABLE_TOTAL = "remappedCorrectableTotal"
    REMAP_FAILED = "remapFailed"
    POWER_VIOLATION_NS_TOTAL = "powerViolationNsTotal"
    THERMAL_VIOLATION_NS_TOTAL = "thermalViolationNsTotal"
    SYNC_BOOST_VIOLATION_NS_TOTAL = "syncBoostViolationNsTotal"
    BOARD_LIMIT_VIOLATION_NS_TOTAL = "boardLimitViolationNsTotal"
    LOW_UTILIZATION_VIOLATION_NS_TOTAL = "lowUtilizationViolationNsTotal"
    RELIABILITY_VIOLATION_NS_TOTAL = "reliabilityViolationNsTotal"
    ECC_SINGLE_VOLATILE_TOTAL = "eccSingleVolatileTotal"
    ECC_DOUBLE_VOLATILE_TOTAL = "eccDoubleVolatileTotal"
    ECC_SINGLE_LIFETIME_TOTAL = "eccSingleLifetimeTotal"
    ECC_DOUBLE_LIFETIME_TOTAL = "eccDoubleLifetimeTotal"
    RETIRED_SINGLE_TOTAL = "retiredSingleTotal"
    RETIRED_DOUBLE_TOTAL = "retiredDoubleTotal"
    RETIRED_PENDING = "retiredPending"
    NVLINK_FLIT_CRC_TOTAL = "nvlinkFlitCrcTotal"
    NVLINK_DATA_CRC_TOTAL = "nvlinkDataCrcTotal"
    NVLINK_REPLAYS_TOTAL = "nvlinkReplaysTotal"
    NVLINK_RECOVERIES_TOTAL = "nvlinkRecoveriesTotal"
    GRAPHICS_RATIO = "graphicsRatio"
    SM_RATIO = "smRatio"
    SM_OCCUPANCY_RATIO = "smOccupancyRatio"
    TENSOR_RATIO = "tensorRatio"
    DRAM_RATIO = "dramRatio"
    FP64_RATIO = "fp64Ratio"
    FP32_RATIO = "fp32Ratio"
    FP16_RATIO = "fp16Ratio"
    PCIE_SENT_BYTES_PER_S = "pcieSentBytesPerSecond"
    PCIE_RECEIVED_BYTES_PER_S = "pcieReceivedBytesPerSecond"
    # Read only if they are selected, because each takes a call of its own.
    MEMORY_TOTAL_BYTES = "memoryTotalBytes"
    MEMORY_USED_RATIO = "memoryUsedRatio"
    SM_CLOCK_MAX_MHZ = "smClockMostMHz"
    MEMORY_CLOCK_MAX_MHZ = "memoryClockMostMHz"
    FAN_PERCENT = "fanPercent"
    PERFORMANCE_STATE = "performanceState"
    CLOCK_REASONS = "clockReasons"
    POWER_LIMIT_W = "powerLimitW"
    POWER_LIMIT_LEAST_W = "powerLimitLeastW"
    POWER_LIMIT_MAX_W = "powerLimitMostW"
    POWER_LIMIT_ENFORCED_W = "powerLimitEnforcedW"
    SLOWDOWN_TEMPERATURE_C = "slowdownTemperatureC"
    SHUTDOWN_TEMPERATURE_C = "shutdownTemperatureC"
    GPU_TEMPERATURE_MAX_C = "gpuTemperatureMostC"
    MEMORY_TEMPERATURE_MAX_C = "memoryTemperatureMostC"
    PCIE_GENERATION = "pcieGeneration"
    PCIE_LANES = "pcieLanes"


# What only the profiling counters show.
PROFILED = frozenset(
    [
        Measure.GRAPHICS_RATIO,
        Measure.SM_RATIO,
        Measure.SM_OCCUPANCY_RATIO,
        Measure.TENSOR_RATIO,
        Measure.DRAM_RATIO,
        Measure.FP64_RATIO,
        Measure.FP32_RATIO,
        Measure.FP16_RATIO,
        Measure.PCIE_SENT_BYTES_PER_S,
        Measure.PCIE_RECEIVED_BYTES_PER_S,
    ]
)


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What one process uses of a GPU or a GPU instance; None for what the driver does not report."""

    pid: int
    memory_bytes: int | None = None
    sm_percent: float | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """The measurements of one moment on one GPU, or on one of its GPU instances.

    `at` is monotonic time, in seconds, so that steps of the wall clock change neither its age nor what is added up.
    `gi_id` is the id of the instance, or `GpuFacts.part_number` if the hardware itself divides its GPUs.
    `processes` is None if they were not asked for or the driver does not list them.
    """

    gpu: str
    at: float
    values: Values
    gi_id: int | None = None
    processes: tuple[ProcessUse, ...] | None = None


@dataclass(frozen=True, slots=True)
class MeterReport:
    """The newest reading of each GPU and GPU instance, and each one's Xids by code since metering began.

    `last_xids` has the code of the newest one, by GPU and instance as in `Reading`.
    """

    readings: tuple[Reading, ...] = ()
    xids: Mapping[tuple[str, int | None], Mapping[int, int]] = field(default_factory=dict)
    last_xids: Mapping[tuple[str, int | None], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MeterPlan:
    """How to measure.

    Args:
        beat_s: the seconds from one round of readings to the next.
        with_profiling: whether to read the profiling counters (GPM) too.
        notify: called by any thread after each round.
        shared_gpus: returns the GPUs of which the processes are wanted too, by PCI address.
        selected: the quantities that are published; what takes a call of its own is read only if it is one of them.
    """

    beat_s: float
    with_profiling: bool
    notify: Callable[[], None]
    shared_gpus: Callable[[], frozenset[str]] = frozenset
    selected: frozenset[str] = frozenset()


# Metric names: the names and labels under which a vendor's quantities are published, those of its own exporter.

Pairs = tuple[tuple[str, str], ...]
WHOLE_MIB = 1 / (1 << 20)  # a scale: bytes as MiB, rounded down
# Not measured in a round, but counted from events: the code of the newest Xid, and counts of the last minutes.
LAST_XID, RECENT_XIDS, RECENT_CLOCK_EVENTS = "lastXid", "recentXids", "recentClockEvents"


@dataclass(frozen=True, slots=True)
class MetricName:
    """One published name, whose value is a quantity times `scale`.

    `quantity` may be one of those above that are counted from events. `labels` tell apart quantities that are published
    under one name; these follow one another in `MetricNames`. A name with `is_former` is one that the vendor's exporter
    had in earlier releases; it is published on demand.
    """

    head: FamilyHead
    quantity: str
    scale: float = 1.0
    is_default: bool = True
    labels: Pairs = ()
    is_former: bool = False

    def value(self, measured: float) -> float:
        """Return a quantity in the unit of the name."""
        return float(int(measured * self.scale)) if self.scale == WHOLE_MIB else measured * self.scale


def gauge(name: str, meaning: str, quantity: str, *, scale: float = 1.0, labels: Pairs = ()) -> MetricName:
    """Return the name of a quantity that goes up and down."""
    return MetricName(FamilyHead(name, SampleKind.GAUGE, meaning), quantity, scale, labels=labels)


def _no_instances(_: PartitionFacts) -> Pairs:
    return ()


@dataclass(frozen=True, slots=True)
class MetricNames:
    """The names of one vendor.

    Args:
        names: every name that can be published.
        gpu_labels: returns the labels of a GPU, or of a part of one, from its index on the node and its facts.
        instance_labels: returns those that a partition has beside its GPU's.
        fields: what else can be a label of every series, by its name: a function of the facts and of the version of
            the node's driver.
        default_fields: those that are labels unless a selection is given.
        hostname_label: the label of the node's name; "" for the one that the agent's option sets.
        takes_counters_file: whether the counters file of the agent's option selects from these names.
    """

    names: tuple[MetricName, ...]
    gpu_labels: Callable[[int, GpuFacts], Pairs]
    instance_labels: Callable[[PartitionFacts], Pairs] = _no_instances
    fields: Mapping[str, Callable[[GpuFacts, str], str]] = field(default_factory=dict)
    default_fields: tuple[str, ...] = ()
    hostname_label: str = ""
    takes_counters_file: bool = False
