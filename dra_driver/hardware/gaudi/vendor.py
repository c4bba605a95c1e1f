"""What Intel's Gaudi declares: hardware, facts, published names, the page that lists them, and its device classes."""

from __future__ import annotations

from dra_driver.hardware.gaudi.hardware import GAUDI_ROWS, GaudiCard, with_pci_facts
from dra_driver.hardware.port import Hardware, Roots
from dra_driver.hardware.vendors import DevicePluginSigns, PassthroughTerms, ReferencePage, Vendor, VendorClass

_CLASS = VendorClass(
    "gaudi.intel.com",
    notes="""\
Any Gaudi accelerator, unless its kernel driver reports that it is not operational.

The name is that of Intel's own driver, so that claims written for it work unchanged.
""",
    expression=(
        'device.driver == "gaudi.intel.com" && device.attributes["gaudi.intel.com"].?healthy.orValue(true) != false '
        '&& device.attributes["gaudi.intel.com"].type != "vfio"'
    ),
    extended_resource="intel.com/gaudi",
)
_PASSED_CLASS = VendorClass(
    "gaudi-vfio.intel.com",
    notes="""\
A Gaudi accelerator for a virtual machine: bound to a VFIO driver when the claim is prepared, given back when it ends.

Only the cards that an administrator names (the chart's passthrough.config) are offered; the class exists where there
are any. Claims for it are admitted in namespaces with the label gaudi.intel.com/passthrough=true, because whoever has
the whole PCI function can write its firmware. Intel's own driver has no such class (docs/kubevirt.md).
""",
    expression='device.driver == "gaudi.intel.com" && device.attributes["gaudi.intel.com"].type == "vfio"',
)


def _open(roots: Roots) -> Hardware:
    from dra_driver.hardware.gaudi.hardware import GaudiHardware  # noqa: PLC0415 - reading the declared names does not need it

    return GaudiHardware(roots)


VENDOR = Vendor(
    title="Gaudi",
    open=_open,
    gpu=GaudiCard,
    rows=GAUDI_ROWS,
    page=ReferencePage("gaudi.md"),
    generated_classes=(_CLASS, _PASSED_CLASS),
    passthrough=PassthroughTerms(with_pci_facts, has_api_device=True),
    # Source: HabanaAI's device plugin for Kubernetes (the resource, the socket's name).
    device_plugin=DevicePluginSigns(("habana.ai/",), "habanalabs.sock"),
)
