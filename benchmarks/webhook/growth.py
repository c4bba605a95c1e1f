"""The webhook's memory on 10,000 nodes with MIG partitions on demand.

The peak of the process's resident memory (VmHWM) is measured: while the list is read, and after everything has changed.
"""

from __future__ import annotations

from benchmarks.figures import Report
from benchmarks.webhook.process import review_of, webhook
from dra_driver.base.names import NVIDIA_DRIVER

NODES = 10_000


def run(report: Report) -> None:
    """Read the list of the fleet, and follow a rollout that changes every slice."""
    attribute = f'device.attributes["{NVIDIA_DRIVER}"]'
    nothing = f'{attribute}.productName == "nothing"'
    older = f'{attribute}.driverVersion.compareTo(semver("581.0.0")) < 0'  # true before the rollout
    with webhook(NODES) as running:
        seconds = running.wait_for_warning(f"none of the {running.devices} devices", review_of(nothing))
        fleet = f"{NODES} nodes partitioned on demand, {running.devices} devices"
        peak = running.mib("VmHWM")
        report.add(f"webhook: list of {fleet}", seconds, "s")
        report.add(f"webhook: list of {fleet}, work", running.cpu_seconds(), "s CPU", budget=200.0)
        report.add(f"webhook: list of {fleet}, peak of memory", peak, "MiB", budget=96.0)
        running.change_all()
        running.wait_for_warning(f"none of the {running.devices} devices", review_of(older))
        report.add("webhook: every slice changed, growth of the peak", running.mib("VmHWM") - peak, "MiB", budget=4.0)
