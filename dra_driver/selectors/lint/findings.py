"""The values of lint: the rules by id, the subject of a check, and findings.

Out: `RULES`, `LintSubject`, `LintFinding`, and the evaluation of a selector on many devices.

The rules are described in docs/selectors.md, under the ids of `RULES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dra_driver.selectors.engine import SelectorRuntimeError
from dra_driver.selectors.evaluation.device_view import DeviceView
from dra_driver.selectors.kubernetes_engine import KubernetesEngine
from dra_driver.selectors.kubernetes_selector import KubernetesSelector
from dra_driver.selectors.remedies.mistake import WrittenExpression
from dra_driver.selectors.remedies.names import KnownNames
from dra_driver.selectors.values.cancellation import check_cancelled

RULES: dict[str, str] = {
    "unguarded-attribute": "an attribute is read that some device lacks: scheduling aborts there",
    "runtime-error": "evaluation fails on some device for another reason: scheduling aborts there",
    "missing-driver-guard": "a class does not compare device.driver first",
    "always-true": "every given device matches, so the selector has no effect",
    "always-false": "no given device matches",
    "string-version": "a string is compared with a version, or versions are ordered as strings",
    "quantity-equality": "quantities are compared with == or !=",
    "bad-literal": "a text that quantity() or semver() can't read, or an amount that is enormous",
    "wrong-type": "a text is searched as a list, or a number compared as a text",
    "wrong-case": "a text that devices have in another case only",
    "cost-limit": "the worst-case cost is beyond or close to the API server's limit",
    "refused": "the API server does not accept the expression in a new object",
    "deprecated-name": "a name that its driver no longer publishes",
    "unknown-name": "a name that no given device has",
    "two-drivers": "devices of more than one driver match",
    "unknown-before-launch": "with --autoscaler: what it can't know of a node that it has yet to start",
}


@dataclass(frozen=True, slots=True)
class LintFinding:
    """One finding. `fix` is a whole new expression; `is_safe` says whether it may be applied automatically.

    `effect` is a sentence about a fix that gives the same verdict on every given device.
    """

    rule: str
    message: str
    clause: str = ""
    fix: str | None = None
    is_safe: bool = False
    effect: str = ""


@dataclass(frozen=True, slots=True)
class LintSubject:
    """One selector to lint.

    `views` are the devices that reach it, one of each kind; `counts` says how many devices each of them stands for.
    `known` caches their names.
    """

    selector: KubernetesSelector
    engine: KubernetesEngine
    views: Sequence[DeviceView]
    counts: Sequence[int]
    in_class: bool = False
    is_first: bool = True
    is_last: bool = True
    known: KnownNames | None = None

    @property
    def names(self) -> KnownNames:
        """The names of the devices."""
        return KnownNames.of(self.views) if self.known is None else self.known

    def written(self) -> WrittenExpression:
        """Return the selector and those names in the form in which rules look for mistakes."""
        return WrittenExpression(self.selector.expression, self.selector.program.root, self.names)

    @property
    def total(self) -> int:
        """The number of devices that reach the selector."""
        return sum(self.counts)


Outcome = bool | str  # a verdict, or the text of an error


def outcomes(selector: KubernetesSelector, views: Sequence[DeviceView]) -> list[Outcome]:
    """Return the outcome of the selector on each device."""
    return [outcome(selector, view) for view in views]


def outcome(selector: KubernetesSelector, view: DeviceView) -> Outcome:
    """Return the outcome of the selector on one device."""
    check_cancelled()
    try:
        return selector.matches_view(view)
    except SelectorRuntimeError as error:
        return error.text
