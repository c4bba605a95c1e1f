"""The engine against verdicts that were recorded from Kubernetes' own packages, by version (`make verdicts`)."""

from __future__ import annotations

from collections import Counter

import pytest

from cluster.components import parts
from cluster.oracle import recordings
from cluster.oracle.editions import SELECTOR_EDITIONS, Edition
from cluster.oracle.ours import differs, our_selector_text, our_selector_verdict
from cluster.oracle.selectors import MISTAKEN_EDITIONS
from dra_driver.selectors import CompileErrorKind, SelectorCompileError, compile_selector

_MIN_EQUAL_TEXTS = 0.995
_MIN_EQUAL_MISTAKES = 0.99


@pytest.mark.parametrize("edition", SELECTOR_EDITIONS, ids=str)
def test_every_selector_gets_the_verdict_that_kubernetes_gave(edition: Edition) -> None:
    found: Counter[str] = Counter()
    differing = []
    for expression, recorded in recordings.read(recordings.SELECTORS, str(edition)):
        ours = our_selector_verdict(expression, edition)
        kind = differs(recorded, ours)
        found[kind] += 1
        if kind == "verdict":
            differing.append((expression, recorded, ours))
    assert found.total() > 1000
    assert not differing
    assert found["text"] <= (1 - _MIN_EQUAL_TEXTS) * found.total()


@pytest.mark.parametrize("edition", MISTAKEN_EDITIONS, ids=str)
def test_common_mistakes_get_the_whole_error_that_kubernetes_gave(edition: Edition) -> None:
    equal, others = 0, []
    for expression, recorded in recordings.read(recordings.MISTAKES, str(edition)):
        ours = our_selector_text(expression, edition)
        assert bool(ours) == bool(recorded), expression
        equal += ours == recorded
        others += [] if ours == recorded else [(expression, recorded, ours)]
    assert equal > 200
    assert len(others) <= (1 - _MIN_EQUAL_MISTAKES) * (equal + len(others)), others


def test_the_recorded_packages_are_those_of_the_lane() -> None:
    lane = {version: f"v0.{parts.kubernetes(version).version.split('.', 1)[1]}" for version in parts.VERSIONS}
    assert recordings.header(recordings.SELECTORS)["packages"] == recordings.pins() == lane


@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36", "1.37"])
def test_an_expression_that_crashes_kubernetes_own_compiler_is_refused_with_that_reason(version: str) -> None:
    with pytest.raises(SelectorCompileError, match="own compiler crashes") as caught:
        compile_selector('[?device.attributes["a"].s[?0]].size() == 0', kubernetes=version)
    assert caught.value.kind is CompileErrorKind.PANIC
