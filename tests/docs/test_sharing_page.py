"""docs/sharing.md: the configuration that it shows is valid, and the classes and attributes that it names exist."""

import re
from pathlib import Path

from dra_driver.base.wire import ShareMode
from dra_driver.hardware.nvidia.published import ATTRIBUTES
from dra_driver.node.claims.config_schema import read_sharing_config

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sharing.md").read_text()


def test_the_configuration_on_the_page_is_valid(tmp_path):
    (shown,) = re.findall(r"```yaml\n(version: rules/v1\n.*?)```", PAGE, re.DOTALL)
    (tmp_path / "rules.yaml").write_text(shown)
    rules = read_sharing_config(tmp_path / "rules.yaml").rules
    assert {rule.mode for rule in rules} == {None, *ShareMode}


def test_classes_and_attributes_on_the_page_exist():
    named = set(re.findall(r"`([a-z-]+)\.nvidia\.com`", PAGE))
    shipped = {
        path.name.removesuffix(".nvidia.com.yaml") for path in (ROOT / "deviceclasses").glob("*.nvidia.com.yaml")
    }
    assert named <= shipped | {"nvidia"}
    assert {name for name in shipped if "share" in name} <= named
    attributes = {row.name for row in ATTRIBUTES}
    assert {"sharedBy", "replicas", "replicaIndex", "sharingStrategy", "enforcement"} <= attributes
    assert all(
        f"`{name}`" in PAGE for name in ("sharedBy", "replicas", "replicaIndex", "sharingStrategy", "enforcement")
    )


def test_the_rules_of_the_examples_are_valid():
    assert len(read_sharing_config(ROOT / "examples" / "sharing" / "node" / "rules.yaml").rules) == 4
