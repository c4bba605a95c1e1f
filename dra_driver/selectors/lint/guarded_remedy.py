"""Guarded remedies: the remedy for an expression, with guards where a device lacks a name.

In: an expression that does not compile, that fails, or that probably does not do what was meant; devices. Out: a
`Remedy`. Its better expression compiles and was evaluated on every device; if no device matches it, a sentence reports
that.
"""

from __future__ import annotations

from collections.abc import Sequence

from dra_driver.selectors.engine import SelectorCompileError
from dra_driver.selectors.evaluation.device_view import DeviceView
from dra_driver.selectors.kubernetes_engine import KubernetesEngine
from dra_driver.selectors.kubernetes_selector import KubernetesSelector
from dra_driver.selectors.lint.findings import LintSubject, outcomes
from dra_driver.selectors.lint.lint import apply_safe_fixes
from dra_driver.selectors.near_misses import nearest_misses
from dra_driver.selectors.remedies.names import KnownNames
from dra_driver.selectors.remedies.remedies import Remedy, remedy


def guarded_remedy(expression: str, engine: KubernetesEngine, views: Sequence[DeviceView]) -> Remedy | None:
    """Return the remedy, tested on the devices that the expression sees; None if no rule explains what is wrong."""
    names = KnownNames.of(views)
    found = remedy(expression, engine.declarations, names, lambda text: _compiled(engine, text) is not None)
    selector = _compiled(engine, found.better) if found and found.better else None
    if found is None or selector is None:
        return found
    subject = LintSubject(selector, engine, views, [1] * len(views), known=names)
    better = apply_safe_fixes(subject) or found.better
    final = _compiled(engine, better)
    sentences = found.sentences
    if final is not None and views and True not in outcomes(final, views):
        near = nearest_misses(final, views)
        sentences += (f"even then no given device matches{f': {near[0].reason}' if near else ''}",)
    return Remedy(sentences, better)


def _compiled(engine: KubernetesEngine, text: str) -> KubernetesSelector | None:
    try:
        return engine.compile(text)
    except SelectorCompileError:
        return None
