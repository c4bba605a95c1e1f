"""What AMD declares: hardware, facts, published names, the page that lists them, and its device classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dra_driver.hardware.amd.attributes import AMD_ROWS
from dra_driver.hardware.amd.hardware import with_pci_facts
from dra_driver.hardware.amd.health import AmdGpu
from dra_driver.hardware.port import Hardware, Roots
from dra_driver.hardware.vendors import (
    DevicePluginSigns,
    PassthroughTerms,
    ReferencePage,
    SharingTerms,
    Vendor,
    VendorClass,
)

if TYPE_CHECKING:
    from dra_driver.hardware.metered import MetricNames

_CLASS = VendorClass(
    "gpu.amd.com",
    notes="""\
Any AMD GPU, or partition of one where the node's GPUs are divided (DPX, QPX, CPX).

The name and its meaning are those of AMD's own driver, so that claims written for it work unchanged. For GPUs
of one kind compare productName, deviceID or partitionProfile in the claim; for all partitions of a divided GPU at once
ask for type "amdgpu". Shares of a GPU have a class of their own, gpu-share.amd.com; so have GPUs for virtual machines,
vfio.gpu.amd.com, which a claim names that AMD's pages write with this class and the selector type == "vfio".
""",
    expression='device.driver == "gpu.amd.com" && device.attributes["gpu.amd.com"].type != "vfio" '
    '&& device.attributes["gpu.amd.com"].type != "amdgpu-share"',
    extended_resource="amd.com/gpu",
)
_WHOLE_CLASS = VendorClass(
    "gpu.amd.com-spx",
    notes="""\
An AMD GPU that is not divided: one in mode SPX, or one that can't be divided.

The name and its meaning are those of AMD's own driver where that divides GPUs on demand (AutoPartition).
""",
    expression='device.driver == "gpu.amd.com" && device.attributes["gpu.amd.com"].type == "amdgpu" '
    '&& device.attributes["gpu.amd.com"].?computePartition.orValue("spx") == "spx"',
)
_PASSED_CLASS = VendorClass(
    "vfio.gpu.amd.com",
    notes="""\
A whole AMD GPU, or a virtual function of one, for a virtual machine: bound to a VFIO driver when the claim is prepared,
given back when it ends.

Only the functions that an administrator names (the chart's passthrough.config) are offered; the class exists where
there are any. Claims for it are admitted in namespaces with the label gpu.amd.com/passthrough=true, because whoever has
the whole PCI function can write its firmware. Type and attributes are those of AMD's own driver (docs/kubevirt.md).
""",
    expression='device.driver == "gpu.amd.com" && device.attributes["gpu.amd.com"].type == "vfio"',
)

_SHARE_CLASS = VendorClass(
    "gpu-share.amd.com",
    notes="""\
A share of an AMD GPU, where the agent's sharing configuration lets several claims use one (docs/amd.md).

Ask for an amount with capacity.requests.memory where shares are counted in memory. To take only shares whose memory
the kernel limits, compare enforcement == "hard" in the claim.
""",
    expression='device.driver == "gpu.amd.com" && device.attributes["gpu.amd.com"].type == "amdgpu-share"',
)


def _open(roots: Roots) -> Hardware:
    from dra_driver.hardware.amd.hardware import AmdHardware  # noqa: PLC0415 - reading the declared names does not need it

    return AmdHardware(roots)


def _metric_names() -> MetricNames:
    from dra_driver.hardware.amd.metering import NAMES  # noqa: PLC0415 - only where the GPUs are metered

    return NAMES


VENDOR = Vendor(
    title="AMD",
    open=_open,
    gpu=AmdGpu,
    rows=AMD_ROWS,
    page=ReferencePage("amd.md"),
    generated_classes=(_CLASS, _WHOLE_CLASS, _SHARE_CLASS, _PASSED_CLASS),
    metric_names=_metric_names,
    sharing=SharingTerms((), "memory of its own, Linux 6.14 with the dmem controller, and cgroup v2"),
    passthrough=PassthroughTerms(with_pci_facts, has_api_device=True),
    device_plugin=DevicePluginSigns(("amd.com/",), "amd.com_*"),  # source: ROCm/k8s-device-plugin
)
