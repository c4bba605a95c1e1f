"""Linting at admission: a selector on the shapes of the fleet, as sentences for whoever wrote it.

In: selectors with their paths. Out: warnings, or nothing for objects that have nothing to do with this driver. What was
said of an expression is kept until the fleet changes, so that a thousand equal claims cost one evaluation.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from dra_driver.model.errors import DriverError
from dra_driver.selectors.device_view import DeviceView
from dra_driver.selectors.engine import SelectorCompileError, SelectorRuntimeError
from dra_driver.selectors.kubernetes_engine import KubernetesEngine, KubernetesSelector
from dra_driver.selectors.lint import lint
from dra_driver.selectors.lint_findings import Finding, Subject, outcomes
from dra_driver.webhook.fleet import IDENTITIES, Fleet
from dra_driver.webhook.objects import SelectorText
from dra_driver.webhook.review import WARNING_CHARACTERS

# What a person should hear while writing a manifest; the rest is for `dra-driver cel lint`.
SAID = frozenset(
    {
        "unguarded-attribute",
        "runtime-error",
        "missing-driver-guard",
        "always-false",
        "string-version",
        "quantity-equality",
        "cost-limit",
        "deprecated-name",
        "unknown-name",
        "two-drivers",
    }
)
_MOST_KNOWN = 1024
_ABOUT_VALUES = frozenset({"always-false", "always-true"})
_GUARDS = frozenset({"unguarded-attribute"})
_MOST_DEVICES = 512  # shapes: beyond this a review would take too long


class FleetLinter:
    """Lints on a fleet. Any thread may ask."""

    def __init__(self, fleet: Fleet, driver: str, *, kubernetes: str) -> None:
        self._fleet, self._driver = fleet, driver
        self._engine = KubernetesEngine(kubernetes)
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str, str, bool, bool], tuple[_Said, ...]] = {}
        self._version = -1

    def warnings(self, kind: str, found: Iterable[SelectorText]) -> list[str]:
        """Say what will hurt; nothing while the fleet is not known."""
        if not self._fleet.is_known:
            return []
        texts = [one for one in found if self._is_ours(kind, one)]
        return [words for one in texts for said in self._said(kind, one) for words in _warnings(one.path, said)]

    def _is_ours(self, kind: str, text: SelectorText) -> bool:
        """Say whether a selector names this driver, or is asked of a class that does."""
        if self._driver in text.expression:
            return True
        if kind == "DeviceClass":
            return False
        return any(self._driver in one for one in self._fleet.selectors_of(text.class_name) or ())

    def _said(self, kind: str, text: SelectorText) -> tuple[_Said, ...]:
        key = (kind, text.class_name, text.expression, text.is_first, text.is_last)
        with self._lock:
            if self._version != self._fleet.version or len(self._known) >= _MOST_KNOWN:
                self._known.clear()
                self._version = self._fleet.version
            if key in self._known:
                return self._known[key]
        said = tuple(map(_said_of, self._lint(kind, text)))
        with self._lock:
            self._known[key] = said
        return said

    def _lint(self, kind: str, text: SelectorText) -> list[Finding]:
        try:
            selector = self._engine.compile(text.expression)
            views, counts = self._reaching("" if kind == "DeviceClass" else text.class_name)
            subject = Subject(
                selector, self._engine, views, counts,
                in_class=kind == "DeviceClass", is_first=text.is_first, is_last=text.is_last,
            )  # fmt: skip
            found = lint(subject)
        except (SelectorCompileError, SelectorRuntimeError, DriverError, RecursionError):
            return []  # the API server's own judgement says it better
        spared = _ABOUT_VALUES if _reads_identities(selector) else frozenset()
        # Nobody should guard a name that does not exist.
        is_misspelt = any(one.rule == "unknown-name" for one in found) and len(views) > 0
        spared |= _GUARDS if is_misspelt and _fails_everywhere(selector, views) else frozenset()
        return [one for one in found if one.rule in SAID - spared]

    def _reaching(self, class_name: str) -> tuple[list[DeviceView], list[int]]:
        """Give the shapes that a class lets through, and how many devices each stands for."""
        shapes = self._fleet.shapes()[:_MOST_DEVICES]
        class_selectors = [self._engine.compile(one) for one in self._fleet.selectors_of(class_name) or ()]
        kept = [one for one in shapes if _passes(class_selectors, one.view)]
        return [one.view for one in kept], [one.count for one in kept]


def _passes(selectors: list[KubernetesSelector], view: DeviceView) -> bool:
    try:
        return all(selector.matches_view(view) for selector in selectors)
    except SelectorRuntimeError:
        return False


def _fails_everywhere(selector: KubernetesSelector, views: list[DeviceView]) -> bool:
    return all(isinstance(one, str) for one in outcomes(selector, views))


def _reads_identities(selector: KubernetesSelector) -> bool:
    return any(name in selector.expression for name in IDENTITIES)


_Said = tuple[str, str, str]  # message, what to write instead, rule


def _said_of(finding: Finding) -> _Said:
    return finding.message, finding.fix if finding.fix and finding.is_safe else "", finding.rule


def _warnings(path: str, said: _Said) -> list[str]:
    """Write a warning; what to write instead in one of its own where there is no room, and never a part of it."""
    message, better, rule = said
    alone = f"{path}: {message} [{rule}]"
    if not better:
        return [alone]
    whole = f"{path}: {message}; better: {better} [{rule}]"
    rest = f"{path}: better: {better}"
    if len(whole) <= WARNING_CHARACTERS:
        return [whole]
    return [alone, rest] if len(rest) <= WARNING_CHARACTERS else [alone]
