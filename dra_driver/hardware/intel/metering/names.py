"""Names: Intel's measurements under the names, units and labels of Intel's exporter.

Source: intel/xpumanager, the Prometheus exporter (xpum_*; ratios are in percent there).
"""

from __future__ import annotations

from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.intel.facts import IntelGpu
from dra_driver.hardware.intel.metering.reading import THROTTLED
from dra_driver.hardware.metered import Measure
from dra_driver.hardware.metric_names import MetricName, MetricNames, Pairs, gauge
from dra_driver.telemetry.exposition import FamilyHead, SampleKind

_Q = Measure
_ENERGY = FamilyHead("xpum_energy_joules", SampleKind.COUNTER, "Energy used since the driver was loaded (in J).")
_NAMES = (
    gauge("xpum_power_watts", "Power drawn (in W).", _Q.POWER_W),
    MetricName(_ENERGY, _Q.ENERGY_MJ_TOTAL, 0.001),
    gauge("xpum_temperature_celsius", "Temperature (in C).", _Q.TEMPERATURE_C, labels=(("location", "gpu"),)),
    gauge("xpum_temperature_celsius", "Temperature (in C).", _Q.MEMORY_TEMPERATURE_C, labels=(("location", "mem"),)),
    gauge(
        "xpum_frequency_mhz",
        "Clock of the fastest graphics part (in MHz).",
        _Q.SM_CLOCK_MHZ,
        labels=(("location", "gpu"), ("type", "actual")),
    ),
    gauge("xpum_frequency_throttling_ratio", "100 while clocks are throttled, else 0.", THROTTLED, scale=100.0),
    gauge("xpum_engine_ratio", "Share of time in which the busiest part was not asleep (in %).", _Q.GPU_PERCENT),
)


def gpu_labels(index: int, gpu: GpuFacts) -> Pairs:
    """Return the labels that name a GPU."""
    device_id = gpu.device_id if isinstance(gpu, IntelGpu) else None
    card = next((node.removeprefix("dri/") for node in gpu.nodes if node.startswith("dri/card")), "")
    return (
        ("dev_id", str(index)),
        ("dev_name", gpu.product_name or ""),
        ("dev_file", card),
        ("pci_bdf", gpu.pci_address),
        ("pci_dev", f"0x{device_id:04x}" if device_id else ""),
        ("vendor", "Intel(R) Corporation"),
    )


NAMES = MetricNames(_NAMES, gpu_labels, hostname_label="node")
