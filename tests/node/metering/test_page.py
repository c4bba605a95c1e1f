"""The page about telemetry says what the code does."""

from pathlib import Path

import yaml

from dra_driver.hardware.nvidia.dcgm_names import NAMES
from dra_driver.hardware.simulated.profile import load_profile
from dra_driver.node.metering.series import AGE, CLAIM_DEVICE, XIDS
from tests.support.metering.promql import metrics_of

DOCS = Path(__file__).parents[3] / "docs"
PAGE, COST = ((DOCS / name).read_text() for name in ("telemetry.md", "cost.md"))


def test_every_metric_of_our_own_is_on_the_page():
    for head in (CLAIM_DEVICE, XIDS, AGE):
        assert f"`{head.name}" in PAGE


def test_the_example_is_a_valid_profile(tmp_path):
    example = PAGE.rpartition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "p.yaml").write_text(f"about: an example\n{example}")
    (gpu,) = load_profile(tmp_path / "p.yaml").gpus
    assert gpu.metering.values["powerW"] == 312.5
    assert gpu.metering.of_instance(3)["graphicsRatio"] == 0.9
    assert gpu.metering.of_instance(1)["graphicsRatio"] == 0.4


def test_the_examples_about_cost_query_only_published_metrics():
    blocks = [one.partition("```")[0] for one in COST.split("```yaml\n")[1:]]
    found = {one["kind"]: one for one in map(yaml.safe_load, blocks) if "kind" in one}
    classes = [
        one for row in found["Configuration"]["resources"]["deviceClassMappings"] for one in row["deviceClassNames"]
    ]
    assert len(set(classes)) == len(classes), "Kueue accepts a class in one mapping only"
    (trigger,) = found["ScaledObject"]["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    assert metrics_of(query) <= {one.head.name for one in NAMES}
    assert query.startswith("sum("), "KEDA divides by the number of replicas"
    assert isinstance(trigger["metadata"]["threshold"], str)
