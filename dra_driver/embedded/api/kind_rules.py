"""Kind rules: which rules each kind has; objects of a kind that is not listed are stored without checks."""

from __future__ import annotations

from collections.abc import Mapping

from dra_driver.embedded.api.kinds import CLAIMS, CLASSES, SLICES, TEMPLATES, ApiKind
from dra_driver.embedded.api_rules import claim_rules, slice_rules
from dra_driver.embedded.api_rules.rules import KindRules

RULES: Mapping[ApiKind, KindRules] = {
    SLICES: slice_rules.RULES,
    CLAIMS: claim_rules.CLAIM_RULES,
    TEMPLATES: claim_rules.TEMPLATE_RULES,
    CLASSES: claim_rules.CLASS_RULES,
}
