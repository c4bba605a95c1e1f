"""Admission: claims and templates that an API server would refuse, found before they are created.

In: an object that people write. Out: an error with line and column. Rules that depend on the version, the gates or the
namespace are not checked here; nor are selectors, for which `verdicts` has better explanations. Configs are checked as
the driver's webhook and its policy check them, for every driver whose name shows its vendor.
"""

from __future__ import annotations

from copy import deepcopy

from dra_driver.claims.config.reading import validate
from dra_driver.embedded.api_rules.claim_rules import CLAIM_RULES, TEMPLATE_RULES
from dra_driver.embedded.api_rules.rules import Faults, KindRules, RuleContext
from dra_driver.model.errors import InputError
from dra_driver.model.kubernetes import FEATURE_GATES, NEWEST_MINOR
from dra_driver.model.vendors import VENDORS
from dra_driver.model.wire import Wire
from dra_driver.views.objects.documents import Document
from dra_driver.views.objects.strictness import with_place
from dra_driver.views.objects.texts import shown
from dra_driver.webhook.objects import KINDS, opaque_configs

_RULES: dict[str, KindRules] = {"ResourceClaim": CLAIM_RULES, "ResourceClaimTemplate": TEMPLATE_RULES}
_LABELS = {"resource.kubernetes.io/admin-access": "true"}
_DRIVERS = frozenset(vendor.driver for vendor in VENDORS)
_CONFIG_HINT = "docs/device-configs.md says what a config may have"
_ANYWHERE = RuleContext(NEWEST_MINOR, frozenset(FEATURE_GATES), "", lambda _: _LABELS)


def refuse_inadmissible(document: Document, wire: Wire) -> None:
    """Refuse an object that no API server would store, or with a config that no node would accept.

    Raises: InputError("input.object", "input.bad-config").
    """
    refuse_bad_configs(document, wire)
    rules = _RULES.get(document.kind)
    if rules is None or wire["metadata"].get("uid"):  # an object with a UID came from an API server
        return
    new, faults = deepcopy(wire), Faults()
    new.setdefault("spec", {})
    rules.prepare(new, None, _ANYWHERE)
    rules.check(new, None, _ANYWHERE, faults)
    for cause in faults.causes:
        if ".selectors[" not in cause.field:
            text = f"{shown(document.origin)}: {document.kind} {document.name}: {cause.field}: {cause.message}"
            hint = "the API server refuses such an object" if len(faults.causes) == 1 else ""
            raise with_place(document, InputError("object", text, hint=hint or _more(len(faults.causes) - 1)))


def refuse_bad_configs(document: Document, wire: Wire) -> None:
    """Refuse a claim, template or class with a config that the nodes of its driver would refuse.

    Raises: InputError("input.bad-config").
    """
    if document.kind not in KINDS or wire["metadata"].get("uid"):
        return
    faults = [
        fault
        for config in opaque_configs(document.kind, wire)
        if config.driver in _DRIVERS
        for fault in validate(config.parameters, config.path, config.driver)
    ]
    if faults:
        more = f"; and {len(faults) - 1} more" if len(faults) > 1 else ""
        text = f"{shown(document.origin)}: {document.kind} {document.name}: {faults[0]}{more}"
        raise with_place(document, InputError("bad-config", text, hint=_CONFIG_HINT))


def _more(others: int) -> str:
    return f"the API server refuses such an object, and names {others} more {'fault' if others == 1 else 'faults'}"
