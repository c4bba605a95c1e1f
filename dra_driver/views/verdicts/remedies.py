"""Remedies for the selectors of queries: what is wrong, and what to write instead.

In: evaluated queries. Out: remedies that suit the devices which the query's earlier selectors accept, and documents.
"""

from __future__ import annotations

from itertools import islice

from dra_driver.model.wire import Wire
from dra_driver.selectors.engine import CompileErrorKind, SelectorRuntimeError
from dra_driver.selectors.evaluation.device_view import DeviceView, prepare_device
from dra_driver.selectors.kubernetes_selector import KubernetesSelector
from dra_driver.selectors.lint.guarded_remedy import guarded_remedy
from dra_driver.selectors.remedies.remedies import Remedy
from dra_driver.views.verdicts.inputs import SelectorInputs
from dra_driver.views.verdicts.query_verdicts import CompiledSelector, QueryVerdicts

_MAX_VIEWS = 2_000  # devices that are examined for the names and values that the author may have meant
_NO_CONDITION = Remedy(("a selector is a condition, true or false: compare this value with what is wanted",), "")


def remedy_of(one: CompiledSelector, judged: QueryVerdicts, given: SelectorInputs) -> Remedy | None:
    """Return the remedy of one expression of a query, or None if no rule finds the mistake."""
    if one.error is None and not given.fleet.devices:
        return None
    if one.error is not None and one.error.kind is CompileErrorKind.RESULT_TYPE:
        return _NO_CONDITION
    if one.error is None and not _is_ours(one.selector):
        return None
    views = [group.view for group in judged.groups] or _views(given)
    earlier = judged.compiled[: next(n for n, other in enumerate(judged.compiled) if other is one)]
    reached = [view for view in views if all(_holds(other.selector, view) for other in earlier)]
    return guarded_remedy(one.written.expression, given.engine(), reached or views)


def remedy_document(found: Remedy | None) -> Wire | None:
    """Return the document of a remedy."""
    return {"sentences": list(found.sentences), "better": found.better or None} if found else None


def _is_ours(selector: object) -> bool:
    """Return whether a selector was compiled by this driver's own engine; only this engine keeps a syntax tree."""
    return isinstance(selector, KubernetesSelector)


def _views(given: SelectorInputs) -> list[DeviceView]:
    return [prepare_device(device.wire, device.driver) for device in islice(given.fleet.devices, _MAX_VIEWS)]


def _holds(selector: KubernetesSelector | None, view: DeviceView) -> bool:
    if selector is None:
        return True
    try:
        return selector.matches_view(view)
    except SelectorRuntimeError:
        return False
