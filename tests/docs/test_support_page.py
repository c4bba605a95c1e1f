"""docs/support.md: its gates and versions are those of the code, and nothing is claimed that was not tried."""

from __future__ import annotations

import re

import pytest
import yaml

from cluster.components import parts
from dra_driver.allocation.rules import gates_on
from dra_driver.base.versions import FEATURE_GATES, VERSIONS
from dra_driver.node.slices import compare
from tests.docs.support.support_matrix import FACTS, MODELS, ROOT, availability, pinned, support_page

PAGE = support_page()


def test_every_gate_behind_a_field_that_slices_use_has_a_feature() -> None:
    named = {row["gate"] for row in FACTS["features"] if "gate" in row}
    assert named <= FEATURE_GATES.keys()
    used = set(compare.gates_behind([*compare.COUNTER_FIELDS, compare.TAINT_FIELD, compare.SHARE_FIELD]))
    assert len(used) == 3
    assert used <= named


@pytest.mark.parametrize("version", VERSIONS)
def test_a_feature_works_as_it_is_where_its_gate_is_on_by_default(version: str) -> None:
    on = gates_on(version, {})
    for row in FACTS["features"]:
        if "gate" in row and version not in row.get("except", {}):
            assert (availability(row, version) == "yes") is (row["gate"] in on), row["feature"]


def test_the_page_names_the_components_that_the_lane_runs() -> None:
    assert sorted(parts.VERSIONS) == sorted(VERSIONS)
    for version in VERSIONS:
        assert pinned(f"kubernetes-{version}", "k8s.io/kubernetes").startswith(f"{version}.")


def test_each_distribution_is_shown_or_was_read_about_and_says_where() -> None:
    for row in FACTS["distributions"]:
        assert row["basis"] in {"shown", "by reading"}
        assert re.match(r"https://|[a-z-]+\.md", row["source"])
    shown = [row["name"] for row in FACTS["distributions"] if row["basis"] == "shown"]
    assert shown == ["upstream's components on Debian"]


def test_every_simulated_model_is_on_the_page() -> None:
    names = [yaml.safe_load(path.read_text())["productName"] for path in MODELS.glob("*.yaml")]
    assert len(names) > 10
    assert all(f"| {name} |" in PAGE for name in names)


def test_the_page_claims_no_real_gpu_before_the_table_of_what_was_shown_does() -> None:
    proof = (ROOT / "docs/shown.md").read_text()
    assert ("shown on a real GPU yet" in PAGE) is ("shown on a real GPU yet" in proof)
