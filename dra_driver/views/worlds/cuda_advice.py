"""Advice on CUDA: devices that a pod may get although their driver is older than its images need.

In: a world, the rules that apply, a subject. Out: sentences with the selector to add. A container on a driver that is
too old starts, and then fails with "no kernel image" or "unsupported driver".
"""

from __future__ import annotations

from collections.abc import Iterator

from dra_driver.claims.cuda_requirement import CudaRequirement, cuda_requirements
from dra_driver.model.names import NVIDIA_DRIVER
from dra_driver.model.semver import Semver
from dra_driver.model.wire import Wire
from dra_driver.selectors.engine import SelectorCompileError, SelectorRuntimeError
from dra_driver.selectors.evaluation.device_view import DeviceView
from dra_driver.selectors.kubernetes_engine import KubernetesEngine
from dra_driver.views.worlds.subjects import ExplainedSubject
from dra_driver.views.worlds.world import World


def cuda_advice(
    world: World, engine: KubernetesEngine, subject: ExplainedSubject, views: list[DeviceView]
) -> Iterator[str]:
    """Yield two sentences for each requirement that some devices do not meet: the lack, and the selector to add."""
    metadata = [{"metadata": claim["metadata"]} for claim in subject.claims]
    needs = [need for wire in ([subject.pod] if subject.pod else []) + metadata for need in cuda_requirements(wire)]
    if not needs:
        return
    for claim in subject.claims:
        for request in claim["spec"].get("devices", {}).get("requests") or ():
            for one in (request.get("exactly"), *(request.get("firstAvailable") or ())):
                reached = [view for view in views if one and _passes(world, engine, one, view)]
                for need in needs:
                    yield from _sentences(need, request["name"], reached)


def _sentences(need: CudaRequirement, request: str, reached: list[DeviceView]) -> Iterator[str]:
    served = [(view, _versions(view)) for view in reached]
    known = [(cuda, driver) for _, (cuda, driver) in served if cuda is not None]
    old = [cuda for cuda, driver in known if not need.is_met_by(cuda, driver)]
    if old:
        yield (
            f"{need.stated_by} needs CUDA {need.version}: {len(old)} of {len(reached)} devices that request {request} "
            f"may get have a driver that supports less (the oldest CUDA {min(old)})"
        )
        yield f"add to its selectors: {need.selector}"


def _versions(view: DeviceView) -> tuple[Semver | None, Semver | None]:
    """Return the CUDA version that a device's driver supports, and the driver's own version; None if unknown."""
    held = view.attributes.get(NVIDIA_DRIVER) or {}
    cuda, driver = held.get("cudaDriverVersion"), held.get("driverVersion")
    return cuda if isinstance(cuda, Semver) else None, driver if isinstance(driver, Semver) else None


def _passes(world: World, engine: KubernetesEngine, request: Wire, view: DeviceView) -> bool:
    """Return whether a request's class and selectors accept a device."""
    name = request.get("deviceClassName")
    wire: Wire = next((one for one in world.of("DeviceClass") if one["metadata"]["name"] == name), {})
    selectors = [*((wire.get("spec") or {}).get("selectors") or ()), *(request.get("selectors") or ())]
    try:
        return all(engine.compile(one["cel"]["expression"]).matches_view(view) for one in selectors)
    except (SelectorCompileError, SelectorRuntimeError):
        return False
