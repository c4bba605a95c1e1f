"""What NVIDIA declares: hardware, facts, published names, and the page that lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dra_driver.base.wire import Strategy
from dra_driver.hardware.nvidia.published import ATTRIBUTES, CAPACITIES, MEMORY_SLICES, NvidiaGpu, feature_labels
from dra_driver.hardware.port import Hardware, Roots
from dra_driver.hardware.vendors import DevicePluginSigns, ReferencePage, SharingTerms, Vendor

if TYPE_CHECKING:
    from dra_driver.hardware.metered import MetricNames

_CLOSING = """\
### Limits

A device has room for 32 attributes and capacities together. Names of NVIDIA's driver and of Kubernetes come first, then
those of sharing; the rest of our own follow by rank while there is room, the same ones for all devices of a type. Whole
GPUs carry up to {gpu} values, partitions up to {mig} and {slices} memory slices, shares of them up to {gpu_share} and
{mig_share}. A partition of more memory slices than that lacks the highest ones, and a text of more than 64 bytes is
left out; both are listed among the problems of `dra-driver devices`.
"""


def _open(roots: Roots) -> Hardware:
    from dra_driver.hardware.nvidia.hardware import NvidiaHardware  # noqa: PLC0415 - reading the declared names does not need it

    return NvidiaHardware(roots)


def _metric_names() -> MetricNames:
    from dra_driver.hardware.nvidia.dcgm_names import DCGM_NAMES  # noqa: PLC0415 - only where it is metered

    return DCGM_NAMES


VENDOR = Vendor(
    title="NVIDIA",
    open=_open,
    gpu=NvidiaGpu,
    rows=(*ATTRIBUTES, *CAPACITIES),
    page=ReferencePage("attributes.md", _CLOSING, more=(MEMORY_SLICES,)),
    device_plugin=DevicePluginSigns(("nvidia.com/gpu", "nvidia.com/mig-"), "nvidia*.sock"),
    labels=feature_labels,
    metric_names=_metric_names,
    sharing=SharingTerms(tuple(Strategy), "release 615 of its driver and cgroup v2"),
    is_tested=True,
    is_reset=True,
)
