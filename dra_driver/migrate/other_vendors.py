"""Extended resources of the device plugins of AMD, Intel and Gaudi.

In: the name of a resource. Out: the kind of device, or whether the name belongs to such a plugin at all.

Source: ROCm/k8s-device-plugin (amd.com/gpu; with -resource_naming_strategy=mixed amd.com/<compute>_<memory>, where
spx is a GPU that is not divided); intel/intel-device-plugins-for-kubernetes, GPU plugin (i915, xe, and for each a
resource `_monitoring` with all GPUs of the node); HabanaAI's device plugin (habana.ai/gaudi).
"""

from __future__ import annotations

import re

from dra_driver.migrate.device_kind import DeviceKind

# Domains in which such plugins name resources and labels, and who sets the labels.
LABELLERS = {
    "amd.com/": "AMD's node labeller",
    "gpu.intel.com/": "Intel's GPU plugin, or a rule of Node Feature Discovery,",
    "habana.ai/": "Gaudi's feature discovery",
}
_AMD_PARTITION = re.compile(r"amd\.com/(([a-z]{3})_nps[0-9]{1,2})")
_WHOLE = {
    "amd.com/gpu": DeviceKind(vendor="amd"),
    "gpu.intel.com/i915": DeviceKind(vendor="intel", profile="i915"),
    "gpu.intel.com/xe": DeviceKind(vendor="intel", profile="xe"),
    "gpu.intel.com/i915_monitoring": DeviceKind(vendor="intel", profile="i915", is_monitor=True),
    "gpu.intel.com/xe_monitoring": DeviceKind(vendor="intel", profile="xe", is_monitor=True),
    "habana.ai/gaudi": DeviceKind(vendor="gaudi"),
}
# The same names inside a longer text, as keys or at the end of JSON pointers ("/" is "~1" there).
INSIDE_TEXT = (
    r"(?:amd\.com{slash}(?:gpu|[a-z]{{3}}_nps[0-9]{{1,2}})"
    r"|gpu\.intel\.com{slash}(?:i915|xe)(?:_monitoring)?|habana\.ai{slash}gaudi)"
)


def kind_of_another_vendor(resource: str) -> DeviceKind | None:
    """Return the kind of device that a resource stands for; None if no such plugin has it.

    >>> kind_of_another_vendor("amd.com/cpx_nps4").device_class, kind_of_another_vendor("gpu.intel.com/tiles")
    ('gpu.amd.com', None)
    """
    if resource in _WHOLE:
        return _WHOLE[resource]
    found = _AMD_PARTITION.fullmatch(resource)
    if found is None:
        return None
    return DeviceKind(is_partition=found[2] != "spx", profile=found[1], vendor="amd")


def labeller_of(text: str) -> str | None:
    """Return who sets the labels (or offers the resources) of a name's domain; None for other domains."""
    return next((labeller for domain, labeller in LABELLERS.items() if text.startswith(domain)), None)
