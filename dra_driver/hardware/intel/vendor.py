"""What Intel declares: hardware, facts, published names, the page that lists them, and its device classes."""

from __future__ import annotations

from dra_driver.hardware.intel.attributes import INTEL_ROWS, NAMES, IntelHardware, with_pci_facts
from dra_driver.hardware.intel.reading import IntelGpu
from dra_driver.hardware.vendors import DevicePluginSigns, PassthroughTerms, ReferencePage, Vendor, VendorClass

_CLASS = VendorClass(
    "gpu.intel.com",
    notes="""\
Any Intel GPU, integrated or not, or virtual function of one.

The name and its meaning are those of Intel's own driver, so that claims written for it work unchanged. For GPUs
with memory of their own compare integrated, family or memory in the claim.
""",
    expression='device.driver == "gpu.intel.com" && device.attributes["gpu.intel.com"].type != "vfio"',
    extended_resource="intel.com/gpu",
)
_PASSED_CLASS = VendorClass(
    "gpu-vfio.intel.com",
    notes="""\
A whole Intel GPU, or a virtual function of one, for a virtual machine: bound to a VFIO driver when the claim is
prepared, given back when it ends.

Only the functions that an administrator names (the chart's passthrough.config) are offered; the class exists where
there are any. Claims for it are admitted in namespaces with the label gpu.intel.com/passthrough=true, because whoever
has the whole PCI function can write its firmware. The name is that of Intel's own driver (docs/kubevirt.md).
""",
    expression='device.driver == "gpu.intel.com" && device.attributes["gpu.intel.com"].type == "vfio"',
)


VENDOR = Vendor(
    title="Intel",
    open=IntelHardware,
    gpu=IntelGpu,
    rows=INTEL_ROWS,
    page=ReferencePage("intel.md"),
    generated_classes=(_CLASS, _PASSED_CLASS),
    metric_names=lambda: NAMES,
    passthrough=PassthroughTerms(with_pci_facts, has_api_device=True),
    # Source: intel/intel-device-plugins-for-kubernetes, GPU plugin: resources i915 and xe.
    device_plugin=DevicePluginSigns(("gpu.intel.com/",), "gpu.intel.com-*.sock"),
)
