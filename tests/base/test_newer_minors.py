"""A Kubernetes minor above the newest known one has the rules of the newest, everywhere that a minor decides."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

import dra_driver
from dra_driver.allocation.rules import RECORDED_PATCHES, Features, rules_of
from dra_driver.base.versions import FEATURE_GATES, NEWEST_MINOR, OLDEST_MINOR, Since, gate_defaults
from dra_driver.base.wire import DeviceTaint, TaintEffect
from dra_driver.node.slices.compare import accepted_taints
from dra_driver.node.slices.layout import lay_out
from dra_driver.selectors.check.declarations import behaviour_of

NEXT = NEWEST_MINOR + 1
SWITCHES = ("consumable_capacity", "list_attributes", "fractional_range", "compatibility_groups", "partitionable")
ALL_FEATURES = [Features(**dict(zip(SWITCHES, on, strict=True))) for on in product((False, True), repeat=len(SWITCHES))]


@pytest.mark.parametrize("features", ALL_FEATURES)
def test_the_allocator_keeps_the_newest_rules(features: Features) -> None:
    newest = rules_of(NEWEST_MINOR, RECORDED_PATCHES[NEWEST_MINOR], features)
    following = rules_of(NEXT, 0, features)
    assert not following.exact  # no verdict of it was recorded
    assert replace(following, minor=NEWEST_MINOR, exact=True) == newest
    assert all(following.knows(gate) for gate in FEATURE_GATES)


def test_selectors_behave_as_in_the_newest() -> None:
    assert behaviour_of(f"1.{NEXT}") == behaviour_of(f"1.{NEWEST_MINOR}") != behaviour_of(f"1.{NEWEST_MINOR - 1}")


def test_gates_keep_their_newest_defaults() -> None:
    assert gate_defaults(NEXT) == gate_defaults(NEWEST_MINOR)


def test_slices_are_laid_out_as_for_the_newest_and_as_for_an_unknown_one() -> None:
    devices = [{"name": f"gpu-{n}", "consumesCounters": [{"counterSet": "a", "counters": {"x": {"value": "1"}}}]}
               for n in range(3)]  # fmt: skip
    sets = [{"name": "a", "counters": {"x": {"value": "8"}}}]
    newest, following, unknown, oldest = (
        lay_out(devices, pool="p", node="n", driver="d", server_minor=minor, counter_sets=sets)
        for minor in (NEWEST_MINOR, NEXT, 0, OLDEST_MINOR)
    )
    assert newest == following == unknown != oldest


def test_taints_that_inform_are_kept() -> None:
    taints = (DeviceTaint("a", "", TaintEffect.NONE),)
    assert [accepted_taints(taints, server_minor=minor) for minor in (NEXT, 0, OLDEST_MINOR)] == [taints, taints, ()]


MINORS = set(range(30, 60))


def test_no_minor_is_compared_outside_the_table() -> None:
    """A minor that is equal to one that is named here is a rule that the next minor silently would not have."""
    root = Path(dra_driver.__file__).parent
    found = []
    for path in root.rglob("*.py"):
        if "_proto" in path.parts or path == root / "base/versions.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                named = [
                    constant.value
                    for side in [node.left, *node.comparators]
                    for constant in ast.walk(side)
                    if isinstance(constant, ast.Constant)
                ]
                text = ast.unparse(node)
                is_minor = "minor" in text and any(isinstance(value, int) and value in MINORS for value in named)
                if is_minor or any(isinstance(value, str) and re.fullmatch(r"1\.3\d", value) for value in named):
                    found.append(f"{path.relative_to(root)}:{node.lineno}: {text}")
    assert found == []


def test_every_row_of_the_table_is_asked_for() -> None:
    root = Path(dra_driver.__file__).parent
    text = "\n".join(path.read_text() for path in root.rglob("*.py"))
    assert [name for name in vars(Since) if not name.startswith("_") and f"Since.{name}" not in text] == []
