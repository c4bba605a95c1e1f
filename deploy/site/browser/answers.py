"""What the worker of the playground answers: the console's questions about selectors, on a fleet that it was given.

In: fleets, which were made when the site was built, or pasted ResourceSlices; questions as JSON. Out: an HTTP status
and a document as JSON, as the console answers. Nothing is kept but the fleets.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from dra_driver.base.errors import DriverError, InputError
from dra_driver.tools.console.playground import completions, explain_on, try_selector
from dra_driver.tools.console.questions import Question, device_id_of, text_of, trial_of
from dra_driver.tools.console.responses import of_fault, refusal
from dra_driver.tools.world.documents import parse_documents
from dra_driver.tools.world.fleet import Fleet, FleetDevice, fleet_of_slices

MAX_PASTED = 4 << 20  # characters

_fleets: dict[str, Fleet] = {}


def add_fleet(name: str, text: str) -> None:
    """Add a fleet that was made when the site was built: its devices as they are published."""
    document = json.loads(text)
    devices = tuple(FleetDevice(*one) for one in document["devices"])
    _fleets[name] = Fleet(devices, tuple(document["sources"]), tuple(document["notes"]))


def _paste(_fleet: Fleet, question: Question) -> Any:
    """Read ResourceSlices that a user pasted, as `kubectl get resourceslices -o yaml` prints them."""
    text = text_of(question, "text", MAX_PASTED)
    documents = [one for one in parse_documents(text, "pasted text") if one.kind == "ResourceSlice"]
    if not documents:
        raise InputError("no-slices", "the text contains no ResourceSlice", hint="kubectl get resourceslices -o yaml")
    fleet = fleet_of_slices([(f"ResourceSlice {one.name}", one.wire) for one in documents], "pasted ResourceSlices")
    _fleets[text_of(question, "fleet")] = fleet
    return {"slices": len(documents), "devices": fleet.size, "nodes": fleet.node_count}


def _selector(fleet: Fleet, question: Question) -> Any:
    return try_selector(fleet, trial_of(question, "")).wire()


def _selector_on(fleet: Fleet, question: Question) -> Any:
    node, wanted = text_of(question, "node"), device_id_of(question)
    device = next((one for one in fleet.devices if (one.node, one.driver, one.pool, one.name) == (node, *wanted)), None)
    if device is None:
        raise InputError("no-device", f"node {node} publishes no device {wanted[2]}")
    return explain_on(device, fleet.sources[0], trial_of(question, "")).wire()


def _completions(fleet: Fleet, question: Question) -> Any:
    return {"candidates": completions(fleet, trial_of(question, ""), text_of(question, "before"))}


_ANSWERS: dict[str, Callable[[Fleet, Question], Any]] = {
    "paste": _paste,
    "selector": _selector,
    "selector/explain": _selector_on,
    "selector/completions": _completions,
}


def answer(name: str, text: str) -> str:
    """Return the status and the document that answer a question, as JSON. Raises nothing that a question can cause."""
    try:
        question = json.loads(text)
        document = _ANSWERS[name](_fleets.get(question["fleet"], Fleet()), question)
        return json.dumps([200, document])
    except DriverError as fault:
        found = of_fault(fault)
    except (MemoryError, RecursionError):
        found = refusal(422, "input.too-large", "this needs more memory than one question may use")
    return f"[{found.status},{found.body.decode()}]"
