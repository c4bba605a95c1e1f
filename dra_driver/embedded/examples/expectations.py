"""Expectations: compare what an example expects with what happened.

In: an expectation and the report. Out: "" if it is met, otherwise what was observed instead. Pure.
"""

from __future__ import annotations

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


def unmet(expectation: Expectation, report: ExampleReport) -> str:
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
            taken = [h.choice.consumed.get(capacity) for h in _held(report, claim)]
            is_met = bool(taken) and all(one and Quantity.parse(one) == Quantity.parse(amount) for one in taken)
            return "" if is_met else f"it takes {taken}"
        case ClaimAgrees(claim, name):
            values = [look_up(h.device, h.choice.id[0], name) for h in _held(report, claim)]
            is_met = bool(values) and None not in values and all(value == values[0] for value in values)
            return "" if is_met else f"its devices have {values}"
        case ClaimStatusHas(claim, name, pattern):
            of_claim = _claim(report, claim)
            status = of_claim.device_status if of_claim else {}
            return "" if name in status and fnmatchcase(status[name], pattern) else f"its status has {dict(status)}"
        case ContainerHasNodes(container, count, pattern):
            paths = _paths(_view(report, container))
            found = [path for path in paths if fnmatchcase(path, pattern)]
            return "" if len(found) == count else f"it has {len(found)} of them; it sees {', '.join(paths) or 'none'}"
        case ContainerHasEnv(container, name, pattern):
            env = dict(item.split("=", 1) for item in _view(report, container).env)
            return "" if name in env and fnmatchcase(env[name], pattern) else f"its environment is {env}"
        case ContainerReads(container, request, name, pattern):
            attributes = _attributes_read(report, container, request)
            is_met = any(fnmatchcase(value, pattern) for key, value in attributes if key == name)
            return "" if is_met else f"it reads {dict(attributes) or 'nothing'}"
        case NodeHasLabel(name, pattern):
            value = report.labels.get(name)
            return "" if value is not None and fnmatchcase(value, pattern) else f"its labels are {report.labels}"
        case ContainersSee(first, second, is_same):
            one, two = (set(_paths(_view(report, name))) for name in (first, second))
            return "" if (one == two) is is_same and one and two else f"they see {sorted(one)} and {sorted(two)}"


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
