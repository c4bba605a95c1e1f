"""Checks of DeviceClasses: whether they match devices, and only this driver's, and whether their selectors work.

Pure. In: `ClusterEvidence`. Out: findings. A class is checked if it names this driver, matches one of its devices, or
is named by a claim; a class that a claim names but that does not exist is a finding, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from dra_driver.doctor.checks.slice_checks import devices_of
from dra_driver.doctor.cluster_evidence import ClusterEvidence
from dra_driver.doctor.finding import Finding
from dra_driver.model.kubernetes import nearest_version
from dra_driver.model.wire import ClassWire, DeviceWire, Wire
from dra_driver.selectors.engine import SelectorCompileError, SelectorRuntimeError
from dra_driver.selectors.kubernetes_engine import KubernetesEngine
from dra_driver.selectors.kubernetes_selector import KubernetesSelector


@dataclass(slots=True)
class _SelectorVerdict:
    """How many devices a class matches, by driver; `fault` is Kubernetes' message about the first failing selector."""

    matches: dict[str, int] = field(default_factory=dict)
    fault: str = ""


def check_classes(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Evaluate every class on every published device, and yield what is wrong with the classes."""
    if not cluster.has("classes", "slices"):
        return
    fleet = {driver: devices_of(slices) for driver, slices in _by_driver(cluster).items()}
    engine = KubernetesEngine(nearest_version(cluster.version.minor))
    wanted = _wanted(cluster)
    for one in cluster.of("classes"):
        wanted_by = wanted.pop(one["metadata"]["name"], "")
        if fleet.get(cluster.driver):  # if this driver publishes no device at all, another check reports that
            yield from _findings(cluster.driver, one, _verdict(engine, one, fleet), wanted_by)
    for name, claim in sorted(wanted.items()):
        yield Finding(
            "class-missing", f"class {name}", f"is named by {claim}, but does not exist", "GET deviceclasses",
            "install it: the chart's classes are in deviceclasses/; kubectl get deviceclasses lists the existing ones",
        )  # fmt: skip


def _findings(driver: str, one: ClassWire, verdict: _SelectorVerdict, wanted_by: str) -> Iterator[Finding]:
    subject, how = f"class {one['metadata']['name']}", "its selectors, evaluated on every published device"
    is_ours = any(driver in expression for expression in _expressions(one))
    others = {name: count for name, count in verdict.matches.items() if name != driver}
    if verdict.fault and (is_ours or wanted_by):
        remedy = "guard the attribute with `in` or has(), or correct the expression: dra-driver cel lint"
        yield Finding("class-broken", subject, verdict.fault, how, remedy)
    elif not verdict.matches and (is_ours or wanted_by):
        code = "class-wanted-no-match" if wanted_by else "class-no-match"
        what = f"matches no device, and {wanted_by} asks for it" if wanted_by else "matches no device"
        yield Finding(code, subject, what, how, _how_to_see(one))
    elif others and driver in verdict.matches:
        listed = ", ".join(f"{count} of {name}" for name, count in sorted(others.items()))
        remedy = f'begin its expression with device.driver == "{driver}" &&'
        yield Finding("class-foreign", subject, f"also matches {listed}", how, remedy)


def _how_to_see(one: ClassWire) -> str:
    name = one["metadata"]["name"]
    return f"kubectl get deviceclass {name} -o yaml | dra-driver cel explain --cluster - shows why"


def check_claim_selectors(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Yield a finding for each waiting claim or template with a selector that fails on a device.

    Such a failure ends the scheduling of the pod.
    """
    if not cluster.has("classes", "slices"):
        return
    fleet = {driver: devices_of(slices) for driver, slices in _by_driver(cluster).items()}
    engine = KubernetesEngine(nearest_version(cluster.version.minor))
    classes = {one["metadata"]["name"]: _expressions(one) for one in cluster.of("classes")}
    for kind, wire, spec in _asking(cluster):
        faults = [fault for one in _parts(spec) if (fault := _fault_of(engine, one, classes, fleet))]
        if faults:
            yield Finding(
                "claim-selector-aborts", f"{kind} {wire['metadata'].get('namespace')}/{wire['metadata']['name']}",
                f"its selector {faults[0]}, which ends the scheduling of its pods on every node",
                "its selectors, evaluated on every published device that the class matches",
                "guard the attribute with `in` or has(), or correct the expression: dra-driver cel lint",
            )  # fmt: skip


def _fault_of(
    engine: KubernetesEngine,
    part: Wire,
    classes: Mapping[str, list[str]],
    fleet: Mapping[str, Mapping[str, DeviceWire]],
) -> str:
    """Return how a request's own selectors fail on devices of its class; "" if they work or the class itself fails."""
    of_class = classes.get(part.get("deviceClassName") or "", [])
    if not part.get("selectors") or _verdict(engine, {"spec": {"selectors": _wires(of_class)}}, fleet).fault:
        return ""
    own = [selector["cel"]["expression"] for selector in part["selectors"] if selector.get("cel")]
    return _verdict(engine, {"spec": {"selectors": _wires([*of_class, *own])}}, fleet).fault


def _wires(expressions: list[str]) -> list[Wire]:
    return [{"cel": {"expression": one}} for one in expressions]


def _verdict(
    engine: KubernetesEngine, one: ClassWire, fleet: Mapping[str, Mapping[str, DeviceWire]]
) -> _SelectorVerdict:
    verdict = _SelectorVerdict()
    try:
        selectors = [engine.compile(expression) for expression in _expressions(one)]
    except SelectorCompileError as error:
        verdict.fault = error.text
        return verdict
    for driver, devices in fleet.items():
        for name, device in devices.items():
            try:
                if _matches(selectors, device, driver):
                    verdict.matches[driver] = verdict.matches.get(driver, 0) + 1
            except SelectorRuntimeError as error:
                verdict.fault = verdict.fault or f"fails on {driver} device {name}: {error.text}"
    return verdict


def matching_devices(cluster: ClusterEvidence, one: ClassWire, devices: Mapping[str, DeviceWire]) -> Iterator[str]:
    """Yield the names of the driver's devices that a class matches; none if its selectors do not work."""
    engine = KubernetesEngine(nearest_version(cluster.version.minor))
    try:
        selectors = [engine.compile(expression) for expression in _expressions(one)]
    except SelectorCompileError:
        return
    for name, device in devices.items():
        with suppress(SelectorRuntimeError):
            if _matches(selectors, device, cluster.driver):
                yield name


def _matches(selectors: list[KubernetesSelector], device: DeviceWire, driver: str) -> bool:
    return all(selector.matches(device, driver) for selector in selectors)


def _by_driver(cluster: ClusterEvidence) -> dict[str, list[Wire]]:
    found: dict[str, list[Wire]] = {}
    for one in cluster.of("slices"):
        found.setdefault(one["spec"]["driver"], []).append(one)
    return found


def _wanted(cluster: ClusterEvidence) -> dict[str, str]:
    """Return for each class one object that asks for it: a template, or a claim that is not allocated yet."""
    wanted: dict[str, str] = {}
    for kind, wire, spec in _asking(cluster):
        for part in _parts(spec):
            if name := part.get("deviceClassName"):
                wanted[name] = f"{kind} {wire['metadata'].get('namespace')}/{wire['metadata']['name']}"
    return wanted


def _asking(cluster: ClusterEvidence) -> Iterator[tuple[str, Wire, Wire]]:
    """Yield templates, and claims that are not allocated yet, each with the spec of the claim."""
    for one in cluster.of("templates"):
        yield "template", one, one["spec"].get("spec") or {}
    for one in cluster.of("claims"):
        if not (one.get("status") or {}).get("allocation"):
            yield "claim", one, one["spec"]


def _parts(spec: Wire) -> Iterator[Wire]:
    """Yield what a claim asks for: each request, and each alternative of a request."""
    for request in (spec.get("devices") or {}).get("requests") or ():
        yield from (request.get("exactly") or {}, *(request.get("firstAvailable") or ()))


def _expressions(one: ClassWire) -> list[str]:
    selectors = (one.get("spec") or {}).get("selectors") or ()
    return [selector["cel"]["expression"] for selector in selectors if selector.get("cel")]
