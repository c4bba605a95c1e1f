"""What the chart installs for shared devices: classes, the supervisor of MPS, the sharing configuration."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from dra_driver.base.errors import ExitCode
from dra_driver.selectors import compile_selector
from dra_driver.tools.main import run
from tests.support.chart import CASES, CHART, OURS, PLUGINS, ROOT, objects, render


@pytest.mark.parametrize(
    ("values", "is_there"),
    [
        ([], False),
        (["mps.enabled=true"], True),
        ([*OURS, "sharing.config.rules[0].sharing.strategy=MPS"], True),
        ([*OURS, "sharing.config.rules[0].sharing.strategy=TimeSlicing"], False),
        (PLUGINS, True),
        (["mps.enabled=false", *OURS, "sharing.config.rules[0].sharing.strategy=MPS"], False),
    ],
)
def test_the_mps_supervisor_is_installed_where_mps_is_configured(helm: str, values: list[str], is_there: bool) -> None:
    found = [c for c in objects(render(helm, *values)) if c["metadata"]["name"] == "dra-driver-mps"]
    assert bool(found) is is_there
    for content in found:
        assert content["spec"]["updateStrategy"] == {"type": "OnDelete"}
        assert content["spec"]["template"]["spec"]["hostPID"] is True


def test_each_namespace_has_classes_that_select_its_own_shares_and_no_other_class_does(helm: str) -> None:
    def device(kind: str, **attributes: str) -> dict:
        mine = {"type": {"string": kind}, "sharingStrategy": {"string": "MPS"}, "sharedBy": {"string": "memory"}}
        mine |= {name: {"string": value} for name, value in attributes.items()}
        return {"name": "d", "attributes": mine}

    classes = {c["metadata"]["name"]: c for c in objects(render(helm, *CASES["tenants"])) if c["kind"] == "DeviceClass"}
    owned = {name for name in classes if name.endswith("-share-mps.nvidia.com") and name.count(".") == 3}
    assert {name.partition(".")[0] for name in owned} == {"team-a", "team-b", "team-c"}
    selected = {
        (kind, tenant): {
            name for name, content in classes.items() if selects(content, device(kind, **tenant_of(tenant)))
        }
        for kind in ("gpu-share", "mig-share")
        for tenant in ("", "team-a", "team-d")
    }
    assert selected["gpu-share", "team-a"] == {"team-a.gpu-share-mps.nvidia.com"}
    assert selected["mig-share", "team-a"] == {"team-a.mig-share-mps.nvidia.com"}
    assert selected["gpu-share", "team-d"] == selected["mig-share", "team-d"] == set()
    assert selected["gpu-share", ""] >= {"gpu-share.nvidia.com", "gpu-share-mps.nvidia.com"}
    assert not owned & selected["gpu-share", ""]


def tenant_of(namespace: str) -> dict[str, str]:
    return {"tenant": namespace} if namespace else {}


def selects(device_class: dict, device: dict) -> bool:
    expressions = [s["cel"]["expression"] for s in device_class["spec"]["selectors"]]
    return all(compile_selector(text).matches(device, "gpu.nvidia.com") for text in expressions)


SHARING = {
    "nothing": ({}, True),
    "replicas": ({"version": "rules/v1", "rules": [{"replicas": 4}]}, True),
    "no rules": ({"version": "rules/v1", "rules": []}, True),
    "memory": ({"version": "rules/v1", "rules": [{"memory": {"default": "10Gi", "max": 40 << 30}}]}, True),
    "compute": ({"version": "rules/v1", "rules": [{"compute": {"default": 25, "min": 5, "step": 5}}]}, True),
    "exclusive": ({"version": "rules/v1", "rules": [{"match": {"nodes": ["a-*"]}, "exclusive": True}]}, True),
    "labels": ({"version": "rules/v1", "rules": [{"match": {"nodeLabels": {"pool": "a"}}, "replicas": 2}]}, True),
    "plugin": ({"version": "v1", "sharing": {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}}}, True),
    "plugin's other parts": ({"version": "v1", "flags": {"migStrategy": "single"}, "resources": {"gpus": []}}, True),
    "no version": ({"rules": [{"replicas": 4}]}, False),
    "misspelt": ({"version": "rules/v1", "rules": [{"replica": 4}]}, False),
    "too many": ({"version": "rules/v1", "rules": [{"replicas": 129}]}, False),
    "too few": ({"version": "rules/v1", "rules": [{"replicas": 1}]}, False),
    "a text": ({"version": "rules/v1", "rules": [{"replicas": "4"}]}, False),
    "strategy": ({"version": "rules/v1", "rules": [{"replicas": 4, "sharing": {"strategy": "Turns"}}]}, False),
    "no default": ({"version": "rules/v1", "rules": [{"memory": {"min": "1Gi"}}]}, False),
    "percent": ({"version": "rules/v1", "rules": [{"compute": {"default": 101}}]}, False),
    "label": ({"version": "rules/v1", "rules": [{"match": {"nodeLabels": {"pool": 1}}, "replicas": 2}]}, False),
    "type": ({"version": "rules/v1", "rules": [{"match": {"types": ["vgpu"]}, "replicas": 2}]}, False),
    "soft": ({"version": "rules/v1", "rules": [{"replicas": 2, "enforcement": "soft"}]}, False),
    "plugin without replicas": (
        {"version": "v1", "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu"}]}}},
        False,
    ),
    "plugin's misspelt": ({"version": "v1", "sharing": {"timeSlice": {}}}, False),
}


@pytest.mark.parametrize("case", SHARING)
def test_the_schema_accepts_a_sharing_configuration_exactly_if_the_agent_does(case: str, tmp_path: Path) -> None:
    content, is_good = SHARING[case]
    schema = json.loads((CHART / "values.schema.json").read_text())
    found = list(jsonschema.Draft7Validator(schema | {"required": []}).iter_errors({"sharing": {"config": content}}))
    assert (not found) is is_good, found
    if content:
        file = tmp_path / "sharing.yaml"
        file.write_text(yaml.safe_dump(content))
        assert (run(["check-config", str(file)]) == ExitCode.OK) is is_good


def test_the_schema_accepts_what_the_page_and_the_examples_show() -> None:
    page = (ROOT / "docs/sharing.md").read_text()
    shown = [text for text in re.findall(r"```yaml\n(.+?)```", page, re.DOTALL) if text.startswith("version: ")]
    shown.append((ROOT / "examples/sharing/node/rules.yaml").read_text())
    assert len(shown) > 1
    schema = json.loads((CHART / "values.schema.json").read_text())
    for text in shown:
        values = {"sharing": {"config": yaml.safe_load(text)}}
        jsonschema.Draft7Validator(schema | {"required": []}).validate(values)
