"""Expectations: compare what an example expects with what happened.

In: an expectation and the report. Out: "" if it is met, otherwise what was observed instead. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from dra_driver.allocation.constraints.constraint import look_up
from dra_driver.embedded.examples.report import ChosenDevice, ClaimReport, ExampleReport, PodReport
from dra_driver.embedded.examples.sentences import (
    ClaimAgrees,
    ClaimHolds,
    ClaimRefused,
    ClaimStatusHas,
    ClaimTakes,
    ContainerHasEnv,
    ContainerHasNodes,
    ContainerReads,
    ContainersSee,
    Expectation,
    NodeHasLabel,
    PodPends,
    PodRuns,
)
from dra_driver.embedded.kubelet.container_view import ContainerView
from dra_driver.model.quantity import Quantity
from dra_driver.model.quantity_text import QuantityError
from dra_driver.model.wire import DeviceWire


def mismatch(expectation: Expectation, report: ExampleReport) -> str:
    """Return what was observed instead of what was expected; "" if the expectation was met."""
    match expectation:
        case PodRuns(pod):
            return _runs(report, pod)
        case PodPends(pod, text):
            return _pends(report, pod, text)
        case ClaimRefused(claim, text):
            return _refused(report, claim, text)
        case ClaimHolds():
            return _holds(expectation, _claim(report, expectation.claim))
        case ClaimTakes(claim, amount, capacity):
            return _takes(_held(report, claim), amount, capacity)
        case ClaimAgrees(claim, name):
            return _agree(_held(report, claim), name)
        case ClaimStatusHas(claim, name, pattern):
            of_claim = _claim(report, claim)
            return _has_status(of_claim.device_status if of_claim else {}, name, pattern)
        case ContainerHasNodes(container, count, pattern):
            return _has_nodes(_paths(_view(report, container)), count, pattern)
        case ContainerHasEnv(container, name, pattern):
            return _has_env(_view(report, container).env, name, pattern)
        case ContainerReads(container, request, name, pattern):
            return _reads(_attributes_read(report, container, request), name, pattern)
        case NodeHasLabel(name, pattern):
            return _has_label(report.labels, name, pattern)
        case ContainersSee(first, second, is_same):
            return _see(*(set(_paths(_view(report, name))) for name in (first, second)), is_same=is_same)


def _pod(report: ExampleReport, name: str) -> PodReport | None:
    return next((pod for pod in report.pods if pod.name == name), None)


def _runs(report: ExampleReport, name: str) -> str:
    pod = _pod(report, name)
    failure = pod.failure if pod else "it was never started"
    return f"it does not run: {failure}" if failure else ""


def _pends(report: ExampleReport, name: str, text: str) -> str:
    pod = _pod(report, name)
    if pod is None or pod.is_placed:
        return "it was placed" if pod else "it was never started"
    return "" if text in pod.failure else f"it is pending, but because of: {pod.failure}"


def _refused(report: ExampleReport, claim: str, text: str) -> str:
    reason = report.refused.get(claim)
    if reason is None:
        return "the API server did not refuse the claim"
    return "" if text in reason else f"the API server refused the claim with: {reason}"


def _claim(report: ExampleReport, label: str) -> ClaimReport | None:
    return next((claim for claim in report.claims if claim.label == label), None)


def _held(report: ExampleReport, label: str) -> tuple[ChosenDevice, ...]:
    claim = _claim(report, label)
    return claim.held if claim else ()


def _view(report: ExampleReport, name: str) -> ContainerView:
    pod_name, _, container = name.partition("/")
    pod = _pod(report, pod_name)
    return pod.containers.get(container, ContainerView()) if pod else ContainerView()


def _attributes_read(report: ExampleReport, name: str, request: str) -> list[tuple[str, str]]:
    """Return the attributes of a request's devices that a container can read."""
    pod_name, _, container = name.partition("/")
    pod = _pod(report, pod_name)
    described = pod.described.get(container, ()) if pod else ()
    return [pair for device in described if device.request == request for pair in device.attributes]


def _paths(view: ContainerView) -> list[str]:
    return [node.path for node in view.device_nodes]


def _holds(expectation: ClaimHolds, claim: ClaimReport | None) -> str:
    if claim is None or claim.refusal:
        return f"it holds nothing: {claim.refusal if claim else 'it was never created'}"
    if len(claim.held) != expectation.count:
        return f"it holds {len(claim.held)}"
    for held in claim.held:
        for name, operator, value in expectation.tests:
            if not _passes(held.device, name, operator, value):
                return f"{held.choice.id[2]} does not have {name}{operator}{value}"
    return ""


def _takes(held: Sequence[ChosenDevice], amount: str, capacity: str) -> str:
    taken = [one.choice.consumed.get(capacity) for one in held]
    is_met = bool(taken) and all(one and Quantity.parse(one) == Quantity.parse(amount) for one in taken)
    return "" if is_met else f"it takes {taken}"


def _agree(held: Sequence[ChosenDevice], name: str) -> str:
    values = [look_up(one.device, one.choice.id[0], name) for one in held]
    is_met = bool(values) and None not in values and all(value == values[0] for value in values)
    return "" if is_met else f"its devices have {values}"


def _has_status(status: Mapping[str, str], name: str, pattern: str) -> str:
    return "" if name in status and fnmatchcase(status[name], pattern) else f"its status has {dict(status)}"


def _has_nodes(paths: Sequence[str], count: int, pattern: str) -> str:
    found = [path for path in paths if fnmatchcase(path, pattern)]
    return "" if len(found) == count else f"it has {len(found)} of them; it sees {', '.join(paths) or 'none'}"


def _has_env(variables: Iterable[str], name: str, pattern: str) -> str:
    env = dict(item.split("=", 1) for item in variables)
    return "" if name in env and fnmatchcase(env[name], pattern) else f"its environment is {env}"


def _reads(attributes: Sequence[tuple[str, str]], name: str, pattern: str) -> str:
    is_met = any(fnmatchcase(value, pattern) for key, value in attributes if key == name)
    return "" if is_met else f"it reads {dict(attributes) or 'nothing'}"


def _has_label(labels: Mapping[str, str], name: str, pattern: str) -> str:
    value = labels.get(name)
    return "" if value is not None and fnmatchcase(value, pattern) else f"its labels are {labels}"


def _see(one: set[str], other: set[str], *, is_same: bool) -> str:
    """Compare the device nodes that two containers see."""
    return "" if (one == other) is is_same and one and other else f"they see {sorted(one)} and {sorted(other)}"


def _passes(device: DeviceWire, name: str, operator: str, value: str) -> bool:
    if operator == ">=":
        amount = (device.get("capacity") or {}).get(name)
        try:
            return amount is not None and Quantity.parse(amount["value"]) >= Quantity.parse(value)
        except QuantityError:
            return False
    found = (device.get("attributes") or {}).get(name)
    if found is None:
        return False
    (shown,) = found.values()
    return (str(shown).lower() if isinstance(shown, bool) else str(shown)) == value
