"""Our verdicts in the oracle's form, and which part of them is compared.

In: an expression and an edition, or a world. Out: verdicts that can be compared with `==`.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from cluster.oracle.editions import DEVICES, DRIVER, Edition
from dra_driver.selectors import CompileErrorKind, SelectorCompileError, SelectorRuntimeError
from dra_driver.selectors.evaluate.program import DeviceView, prepare_device
from dra_driver.selectors.kubernetes import KubernetesEngine

Verdict = dict[str, Any]
_LIST = re.compile(r"^attribute \w+: (?=unsupported)")
_SYNTAX = re.compile(r"compilation failed: ERROR: <input>:\d+:\d+: Syntax error")


@cache
def _views() -> list[DeviceView]:
    return [prepare_device(device, DRIVER) for device in DEVICES]


@cache
def _engine(edition: Edition) -> KubernetesEngine:
    return KubernetesEngine(edition.kubernetes, gates=edition.gates)


def our_selector_verdict(expression: str, edition: Edition) -> Verdict:
    """Return what our engine answers."""
    try:
        selector = _engine(edition).compile(expression, environment=edition.environment)  # type: ignore[arg-type]
    except SelectorCompileError as error:
        if error.kind is CompileErrorKind.PANIC:
            return {"panic": ""}
        return {"error": _first_line(error.text)}
    verdict: Verdict = {"type": selector.output_type, "cost": str(selector.max_cost)}
    if edition.environment == "stored":
        verdict["devices"] = [_on_device(selector, view) for view in _views()]
    return verdict


def our_selector_text(expression: str, edition: Edition) -> str:
    """Return our whole error about an expression; "" if it compiles."""
    try:
        _engine(edition).compile(expression, environment=edition.environment)  # type: ignore[arg-type]
    except SelectorCompileError as error:
        return error.text
    return ""


def _on_device(selector: Any, view: DeviceView) -> bool | str:
    try:
        return bool(selector.matches_view(view))
    except SelectorRuntimeError as error:
        return _first_line(error.text)


def their_selector_verdict(theirs: Verdict) -> Verdict:
    """Return the part of the oracle's answer that is recorded and compared."""
    if "panic" in theirs or "crash" in theirs:
        return {"panic": ""} if "panic" in theirs else {"crash": ""}
    if "error" in theirs:
        return {"error": _first_line(theirs["error"])}
    verdict: Verdict = {"type": theirs["type"], "cost": "unknown" if "unestimated" in theirs else theirs["cost"]}
    if "devices" in theirs:
        verdict["devices"] = [_their_device(one) for one in theirs["devices"]]
    return verdict


def _their_device(theirs: Verdict) -> bool | str:
    if "panic" in theirs:
        return f"panic: {theirs['panic']}"
    return _first_line(theirs["error"]) if "error" in theirs else theirs.get("match", False)


def _first_line(text: str) -> str:
    """Return the first line of an error; of a syntax error only the position, as the words are the parser generator's.

    Which of a device's several lists is named in the error depends on the order of a Go map.
    """
    line = _LIST.sub("attribute: ", (text.splitlines() or [""])[0])
    found = _SYNTAX.match(line)
    return found[0] if found else line


def differs(theirs: Verdict, ours: Verdict) -> str:
    """Return "" for equal verdicts, "text" where only the words of an error differ, else "verdict"."""
    if theirs == ours:
        return ""
    return "text" if _wordless(theirs) == _wordless(ours) else "verdict"


def _wordless(verdict: Verdict) -> Verdict:
    if "devices" not in verdict:
        return {**verdict, "error": ""} if "error" in verdict else verdict
    return {**verdict, "devices": [one if isinstance(one, bool) else "" for one in verdict["devices"]]}
