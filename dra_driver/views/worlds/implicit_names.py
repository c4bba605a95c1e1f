"""Implicit names of classes as extended resources, which the scheduler of Kubernetes 1.34 ignores.

To its plugin for claims, a name below kubernetes.io is no extended resource; its plugin for resources leaves such a
name to the plugin for claims. So the pod is scheduled without a claim, and starts without the device.
Source: Kubernetes 1.34, scheduler plugins dynamicresources (hasDeviceClassMappedExtendedResource) and noderesources
(withDeviceClass, fitsRequest).
"""

from __future__ import annotations

from collections.abc import Sequence

from dra_driver.embedded.scheduling.workloads import IMPLICIT
from dra_driver.views.worlds.world import World


def ignored_resources(world: World, asked: Sequence[str]) -> tuple[str, ...]:
    """Return those of a pod's extended resources that its scheduler ignores.

    Beside a resource with another name, the implicit name is ignored only of a class without an extendedResourceName.
    """
    if not world.serves_resources or world.serves_implicit_names:
        return ()
    implicit = tuple(name for name in asked if name.startswith(IMPLICIT))
    if len(implicit) == len(asked):
        return implicit
    classes = world.of("DeviceClass")
    unnamed = {one["metadata"]["name"] for one in classes if not (one.get("spec") or {}).get("extendedResourceName")}
    return tuple(name for name in implicit if name.removeprefix(IMPLICIT) in unnamed)
