"""The texts of a review, cut to a length that people read and API servers pass on.

Pure. In: findings about selectors, faults of configs. Out: warnings, and the status of a refusal; whatever a tenant
wrote, an answer has only a few KiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dra_driver.claims.config.device_config import ConfigFault
from dra_driver.model.wire import Wire
from dra_driver.selectors.lint.findings import LintFinding

MAX_WARNINGS = 10
# The API server may cut a warning here, once there are many. Source: Kubernetes, admission webhooks, warnings.
WARNING_CHARACTERS = 256
MAX_FAULTS = 20
_PATH_CHARACTERS = 200
_MESSAGE_CHARACTERS = 200
_NAME_CHARACTERS = 253  # of an object. Source: Kubernetes, DNS subdomain names
_FAULT_BYTES = 4096  # for all faults together; 20 faults of ordinary length fit


@dataclass(frozen=True, slots=True)
class SelectorWarning:
    """A warning about a selector: the message, a better expression or "", and the rule of lint."""

    message: str
    better: str
    rule: str


def to_warning(finding: LintFinding) -> SelectorWarning:
    """Return the warning for a finding. A better expression that is too long to be passed on is dropped."""
    fix = finding.fix if finding.fix and finding.is_safe else ""
    better = fix if len(fix) < WARNING_CHARACTERS else ""
    return SelectorWarning(shortened(finding.message, WARNING_CHARACTERS), better, finding.rule)


def warnings_of(path: str, warning: SelectorWarning) -> Iterator[str]:
    """Yield the texts of a warning. The better expression is never cut: if it does not fit, it gets its own text."""
    alone = f"{path}: {warning.message} [{warning.rule}]"
    whole = f"{path}: {warning.message}; better: {warning.better} [{warning.rule}]"
    rest = f"{path}: better: {warning.better}"
    if warning.better and len(whole) <= WARNING_CHARACTERS:
        yield shortened(whole, WARNING_CHARACTERS)
        return
    yield shortened(alone, WARNING_CHARACTERS)
    if warning.better and len(rest) <= WARNING_CHARACTERS:
        yield shortened(rest, WARNING_CHARACTERS)


def refusal(kind: str, driver: str, name: str, faults: Iterable[ConfigFault]) -> Wire:
    """Return the status of a refusal. The faults are read only up to the number that is reported."""
    reported: list[tuple[str, str]] = []
    room, is_more = _FAULT_BYTES, False
    for fault in faults:
        path, message = shortened(fault.path, _PATH_CHARACTERS), shortened(fault.message, _MESSAGE_CHARACTERS)
        room -= len(path.encode()) + len(message.encode())
        if reported and (len(reported) == MAX_FAULTS or room < 0):
            is_more = True
            break
        reported.append((path, message))
    more = "; and more" if is_more else ""
    text = f"{driver} can't use this {kind}: {'; '.join(f'{path}: {message}' for path, message in reported)}{more}"
    # If there are details, kubectl shows a line for each field, as for the API server's own validation.
    causes = [{"reason": "FieldValueInvalid", "field": path, "message": message} for path, message in reported]
    named = shortened(name, _NAME_CHARACTERS)
    details = {"name": named, "group": "resource.k8s.io", "kind": kind, "causes": causes}
    return {"status": "Failure", "code": 422, "reason": "Invalid", "message": text, "details": details}


def shortened(text: str, maximum: int) -> str:
    """Return a text cut to a length; half of a surrogate pair, which is no character, becomes a question mark."""
    cut = text if len(text) <= maximum else f"{text[: maximum - 1]}…"
    return cut if cut.isprintable() else cut.encode("utf-8", "replace").decode()
