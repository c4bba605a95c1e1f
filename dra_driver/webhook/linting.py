"""Lint at admission: evaluate selectors on the shapes of the fleet, and warn their authors.

In: selectors with their paths, and the deadline of the review. Out: warnings, or none for objects that have nothing to
do with this driver. One review is worked on at a time, until its deadline; a warning says which selectors could not be
judged by then. The warnings about an expression are kept until the fleet changes, so that a thousand equal claims cost
one evaluation.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from dra_driver.model.errors import DriverError
from dra_driver.selectors.engine import SelectorCompileError, SelectorRuntimeError
from dra_driver.selectors.evaluation.device_view import DeviceView
from dra_driver.selectors.kubernetes_engine import KubernetesEngine
from dra_driver.selectors.kubernetes_selector import KubernetesSelector
from dra_driver.selectors.library.regex import compile_pattern
from dra_driver.selectors.lint.findings import LintFinding, LintSubject, outcomes
from dra_driver.selectors.lint.guarded_remedy import guarded_remedy
from dra_driver.selectors.lint.lint import lint
from dra_driver.selectors.values.cancellation import EvaluationCancelledError, cancellable
from dra_driver.webhook.fleet import PublishedFleet
from dra_driver.webhook.objects import SelectorText
from dra_driver.webhook.review_deadline import CallerGoneError, ReviewDeadline
from dra_driver.webhook.shapes import is_identity
from dra_driver.webhook.wording import MAX_WARNINGS, SelectorWarning, to_warning, warnings_of

# The findings of which an author is warned while writing a manifest; the rest is for `dra-driver cel lint`.
WARNED_RULES = frozenset(
    {
        "unguarded-attribute",
        "runtime-error",
        "missing-driver-guard",
        "always-false",
        "string-version",
        "quantity-equality",
        "bad-literal",
        "wrong-type",
        "cost-limit",
        "deprecated-name",
        "unknown-name",
        "two-drivers",
    }
)
_MAX_KNOWN = 1024
_ABOUT_VALUES = frozenset({"always-false", "always-true"})
_ABOUT_ALL = frozenset({*_ABOUT_VALUES, "unknown-name"})  # does not apply to devices that are only partly known
_GUARDS = frozenset({"unguarded-attribute"})
_WAIT_SECONDS = 0.3  # to wait for another review to end
_FAIR_SECONDS = 0.5  # an evaluation that had this long and did not end is not tried again until the fleet changes
NOT_JUDGED = SelectorWarning("not judged: evaluating it takes too long", "", "not-judged")


@dataclass(frozen=True, slots=True)
class _ClassDevices:
    """The devices that a class accepts, and whether these are all."""

    views: tuple[DeviceView, ...]
    counts: tuple[int, ...]
    is_whole: bool


class FleetLinter:
    """Lint selectors on a fleet. Any thread may ask."""

    def __init__(self, fleet: PublishedFleet, drivers: Sequence[str], *, kubernetes: str) -> None:
        self._fleet, self._drivers = fleet, drivers
        self._engine = KubernetesEngine(kubernetes)
        self._turn = threading.Lock()  # held by the review that is being worked on
        self._memory_lock = threading.Lock()
        self._warnings_by_key: dict[bytes, tuple[SelectorWarning, ...]] = {}
        self._devices_by_class: dict[tuple[int, str], _ClassDevices] = {}
        self._version = -1

    def warnings(self, kind: str, found: Iterable[SelectorText], deadline: ReviewDeadline | None = None) -> list[str]:
        """Return one sentence for each problem; none until the fleet is known. Raises: CallerGoneError."""
        if not self._fleet.is_known:
            return []
        sentences: list[str] = []
        deadline = deadline or ReviewDeadline()
        with _Turn(self._turn) as turn:
            for text in found:
                if self._is_relevant(kind, text):
                    for one in self._warnings_about(kind, text, turn, deadline):
                        sentences += warnings_of(text.path, one)
                if len(sentences) >= MAX_WARNINGS or turn.was_missed:
                    break
        return sentences[:MAX_WARNINGS]

    def _is_relevant(self, kind: str, text: SelectorText) -> bool:
        """Return whether a selector names a driver of this release, or belongs to a request for a class that does."""
        if self._names_driver_of_ours(text.expression):
            return True
        if kind == "DeviceClass":
            return False
        return any(map(self._names_driver_of_ours, self._fleet.selectors_of(text.class_name) or ()))

    def _names_driver_of_ours(self, expression: str) -> bool:
        return any(driver in expression for driver in self._drivers)

    def _warnings_about(
        self, kind: str, text: SelectorText, turn: _Turn, deadline: ReviewDeadline
    ) -> tuple[SelectorWarning, ...]:
        key = _key(kind, text)
        known = self._recall(key) if deadline.left_s > 0 else None
        if known is not None:
            return known
        if not turn.wait(deadline):
            return (NOT_JUDGED,)
        return self._judge(key, kind, text, deadline)

    def _judge(
        self, key: bytes, kind: str, text: SelectorText, deadline: ReviewDeadline
    ) -> tuple[SelectorWarning, ...]:
        """Lint until the deadline, and remember the warnings. Raises: CallerGoneError."""
        version, began_s = self._fleet.version, deadline.left_s
        try:
            with cancellable(deadline.check):
                warnings = tuple(map(to_warning, self._lint(kind, text)[:MAX_WARNINGS]))
        except CallerGoneError:
            raise
        except EvaluationCancelledError:
            warnings = (NOT_JUDGED,)
            if began_s < _FAIR_SECONDS:
                return warnings  # the time was spent on the review's earlier selectors, so this one may be tried again
        with self._memory_lock:
            if self._version == version:
                self._warnings_by_key[key] = warnings
        return warnings

    def _recall(self, key: bytes) -> tuple[SelectorWarning, ...] | None:
        with self._memory_lock:
            if self._version != self._fleet.version or len(self._warnings_by_key) >= _MAX_KNOWN:
                self._warnings_by_key.clear()
                self._devices_by_class.clear()
                self._version = self._fleet.version
            return self._warnings_by_key.get(key)

    def _lint(self, kind: str, text: SelectorText) -> list[LintFinding]:
        try:
            accepted = self._devices_of("" if kind == "DeviceClass" else text.class_name)
            try:
                selector = self._engine.compile(text.expression)
            except SelectorCompileError as fault:
                return list(self._broken(text.expression, fault, accepted))
            subject = LintSubject(
                selector, self._engine, accepted.views, accepted.counts,
                in_class=kind == "DeviceClass", is_first=text.is_first, is_last=text.is_last,
            )  # fmt: skip
            found = lint(subject)
            return [one for one in found if one.rule in WARNED_RULES - _inapplicable_rules(selector, found, accepted)]
        except (SelectorCompileError, SelectorRuntimeError, DriverError, RecursionError, MemoryError):
            return []  # the API server's own validation reports it better

    def _broken(self, expression: str, fault: SelectorCompileError, accepted: _ClassDevices) -> Iterator[LintFinding]:
        """Yield a correction for an expression that does not compile, since the API server only refuses it."""
        found = guarded_remedy(expression, self._engine, accepted.views)
        if found is not None and found.better:
            message = f"it does not compile ({fault.kind} error): {'; '.join(found.sentences)}"
            yield LintFinding("refused", message, expression, found.better, is_safe=True)

    def _devices_of(self, class_name: str) -> _ClassDevices:
        """Return the shapes that a class accepts, and how many devices each stands for."""
        expressions = self._fleet.selectors_of(class_name) or ()
        key = self._fleet.version, class_name if expressions else ""
        known = self._devices_by_class.get(key)
        if known is not None:
            return known
        selectors = [self._engine.compile(one) for one in expressions]
        kept = [one for one in self._fleet.shapes() if _passes(selectors, one.view)]
        is_whole = not any(map(self._fleet.is_partly_known, {one.view.driver for one in kept}))
        made = _ClassDevices(tuple(one.view for one in kept), tuple(one.count for one in kept), is_whole)
        self._devices_by_class[key] = made
        return made


class _Turn:
    """The turn of one review to be worked on; `was_missed` is set once the review has waited for too long."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock, self._is_mine, self.was_missed = lock, False, False

    def wait(self, deadline: ReviewDeadline) -> bool:
        """Wait for the turn, on the first call only; return whether it came, and time is left to work."""
        if not self._is_mine:
            self._is_mine = self._lock.acquire(timeout=min(_WAIT_SECONDS, deadline.left_s))
        self.was_missed = not self._is_mine or deadline.left_s <= 0
        return not self.was_missed

    def __enter__(self) -> _Turn:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_mine:
            compile_pattern.cache_clear()  # a hostile pattern can take megabytes
            self._lock.release()


def _passes(selectors: list[KubernetesSelector], view: DeviceView) -> bool:
    try:
        return all(selector.matches_view(view) for selector in selectors)
    except SelectorRuntimeError:
        return False


def _inapplicable_rules(
    selector: KubernetesSelector, found: list[LintFinding], accepted: _ClassDevices
) -> frozenset[str]:
    """Return the rules whose findings are dropped: they hold for the shapes, but maybe not for every device."""
    spared = _ABOUT_VALUES if _reads_identities(selector) else frozenset()
    if not accepted.is_whole:
        spared |= _ABOUT_ALL
    # An attribute that does not exist should be corrected, not guarded, so the advice to guard it is left out.
    is_misspelt = any(one.rule == "unknown-name" for one in found) and len(accepted.views) > 0
    is_hopeless = is_misspelt and all(isinstance(one, str) for one in outcomes(selector, accepted.views))
    return spared | _GUARDS if is_hopeless else spared


def _reads_identities(selector: KubernetesSelector) -> bool:
    """Return whether an expression reads an attribute that distinguishes devices of one shape, or all attributes."""
    reads = [read for read in selector.read_set.reads if read.field == "attributes"]
    return any(read.name is None or is_identity(read.name) for read in reads)


def _key(kind: str, text: SelectorText) -> bytes:
    """Return the key under which warnings are remembered: a digest, since the text may have 10 KiB."""
    parts = "\0".join((kind, text.class_name, f"{text.is_first:d}{text.is_last:d}", text.expression))
    return blake2b(parts.encode("utf-8", "surrogatepass"), digest_size=16).digest()
