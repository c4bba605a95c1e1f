"""Advice for a claim that fits nowhere: what is wrong with its selectors, and what to write instead.

In: a world, the rules that apply, a subject. Out: sentences for each selector that has a remedy, and for each missing
class.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from itertools import islice

from dra_driver.allocation.explaining.explanation import AllocationExplanation
from dra_driver.model.wire import Wire
from dra_driver.selectors.checking.declarations import SELECTOR_GATES
from dra_driver.selectors.engine import SelectorCompileError, SelectorRuntimeError
from dra_driver.selectors.evaluation.device_view import DeviceView, prepare_device
from dra_driver.selectors.kubernetes_engine import KubernetesEngine
from dra_driver.selectors.lint.guarded_remedy import guarded_remedy
from dra_driver.views.worlds.capacity_advice import capacity_advice
from dra_driver.views.worlds.cuda_advice import cuda_advice
from dra_driver.views.worlds.rules import AppliedRules
from dra_driver.views.worlds.subjects import ExplainedSubject
from dra_driver.views.worlds.world import World

WRITE = "write: "  # what follows is an expression to copy
_MAX_VIEWS = 2_000  # devices that are examined for the names and values that the author may have meant


def advised(
    world: World, rules: AppliedRules, subject: ExplainedSubject, explanation: AllocationExplanation | None
) -> tuple[ExplainedSubject, AllocationExplanation | None]:
    """Add advice to the notes of a subject: on selectors and room if it fits nowhere, and on the CUDA that it needs."""
    if explanation is None:
        return subject, explanation
    gates = {name: on for name, on in rules.gates.items() if name in SELECTOR_GATES}
    engine = KubernetesEngine(rules.kubernetes, gates=gates)
    views = list(islice(_views(world), _MAX_VIEWS))
    notes: tuple[str, ...] = ()
    if not explanation.ok:
        notes = (
            *class_advice(world, subject),
            *selector_advice(world, engine, subject, views),
            *capacity_advice(world, rules, subject),
        )
    notes = (*subject.notes, *notes, *dict.fromkeys(cuda_advice(world, engine, subject, views)))
    return replace(subject, notes=notes), explanation


def selector_advice(
    world: World, engine: KubernetesEngine, subject: ExplainedSubject, views: list[DeviceView]
) -> tuple[str, ...]:
    """Return what to write instead in the selectors of a subject's claims; () if there is no remedy."""
    found: list[str] = []
    for label, class_name, expression in _expressions(subject):
        reached = [view for view in views if _passes(world, class_name, engine, view)]
        remedy = guarded_remedy(expression, engine, reached or views)
        if remedy is not None:
            found.append(f"{label}: {'; '.join(remedy.sentences)}")
            found += [f"{WRITE}{remedy.better}"] if remedy.better else []
    return tuple(dict.fromkeys(found))


def class_advice(world: World, subject: ExplainedSubject) -> tuple[str, ...]:
    """Return a sentence for each class of a subject's claims that does not exist, with the most similar name."""
    known = [one["metadata"]["name"] for one in world.of("DeviceClass")]
    found: dict[str, str] = {}
    for claim in subject.claims:
        for request in (claim["spec"].get("devices") or {}).get("requests") or ():
            for one in (request.get("exactly"), *(request.get("firstAvailable") or ())):
                name = (one or {}).get("deviceClassName")
                if name and name not in known:
                    near = get_close_matches(name, known, n=1)
                    meant = f": did you mean {near[0]}?" if near else f"; there are {', '.join(sorted(known)[:8])}"
                    found[name] = f"there is no DeviceClass {name}{meant}"
    return tuple(found.values())


def _views(world: World) -> Iterator[DeviceView]:
    for one in world.of("ResourceSlice"):
        for device in one["spec"].get("devices") or ():
            yield prepare_device(device, one["spec"]["driver"])


def _expressions(subject: ExplainedSubject) -> Iterator[tuple[str, str, str]]:
    """Yield each selector of the claims: its place, the class of its request, and its text."""
    for claim in subject.claims:
        for request in claim["spec"].get("devices", {}).get("requests") or ():
            for one in (request.get("exactly"), *(request.get("firstAvailable") or ())):
                for number, selector in enumerate((one or {}).get("selectors") or ()):
                    name = request["name"] if one is request.get("exactly") else f"{request['name']}/{one['name']}"
                    label = f"claim {claim['metadata']['name']}, request {name}, selector #{number}"
                    if expression := (selector.get("cel") or {}).get("expression"):
                        yield label, one["deviceClassName"], expression


def _passes(world: World, class_name: str, engine: KubernetesEngine, view: DeviceView) -> bool:
    """Return whether a class accepts a device. A class that is missing, or whose selectors fail, accepts none."""
    wire: Wire = next((one for one in world.of("DeviceClass") if one["metadata"]["name"] == class_name), {})
    try:
        return all(
            engine.compile(selector["cel"]["expression"]).matches_view(view)
            for selector in (wire.get("spec") or {}).get("selectors") or ()
        )
    except (SelectorCompileError, SelectorRuntimeError):
        return False
