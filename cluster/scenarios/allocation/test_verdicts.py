"""The recorded verdicts are still those of Kubernetes' own packages, as the module files pin them."""

from __future__ import annotations

import pytest

from cluster.oracle import allocations, selectors


@pytest.mark.soak
def test_the_oracle_answers_about_selectors_as_recorded() -> None:
    assert selectors.changed() == []


@pytest.mark.soak
def test_the_oracle_answers_about_allocation_as_recorded() -> None:
    assert allocations.changed() == []
