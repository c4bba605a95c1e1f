"""Objects of older API versions, of versions that are not served, and with fields that the API does not have."""

from __future__ import annotations

import json

import pytest

from dra_driver.base.errors import ExitCode
from dra_driver.tools.main import run

OLD = """apiVersion: resource.k8s.io/{version}
kind: ResourceClaim
metadata: {{name: c}}
spec:
  devices:
    requests:
    - name: gpu
      deviceClassName: gpu.nvidia.com
"""
NEW = """apiVersion: resource.k8s.io/{version}
kind: ResourceClaim
metadata: {{name: c}}
spec:
  devices:
    requests:
    - name: gpu
      exactly:
        deviceClassName: gpu.nvidia.com
        {field}
"""


@pytest.fixture
def explain(tmp_path, capsys):
    def it(text):
        path = tmp_path / "claim.yaml"
        path.write_text(text)
        code = run(["explain", "claim", "c", "-f", str(path), "--fleet", "dgx-h100", "-o", "json"])
        said = capsys.readouterr()
        return code, said.err.replace(str(path), "claim.yaml"), said.out

    return it


@pytest.mark.parametrize("text", [OLD.format(version="v1beta1"), NEW.format(version="v1beta2", field="count: 1")])
def test_older_versions_are_converted_as_the_api_server_does(explain, text):
    code, _, out = explain(text)
    assert code == ExitCode.OK
    assert json.loads(out)["ok"]


def test_a_field_of_an_older_version_in_a_v1_object_is_a_fault_with_line_and_column(explain):
    code, err, _ = explain(OLD.format(version="v1"))
    assert code == ExitCode.BAD_INPUT
    assert "claim.yaml:8:7: ResourceClaim c: spec.devices.requests[0].deviceClassName" in err
    assert "in v1 this field is under `exactly:`" in err


@pytest.mark.parametrize("version", ["v1alpha2", "v1alpha3", "v9"])
def test_versions_that_are_not_served_are_refused(explain, version):
    code, err, _ = explain(OLD.format(version=version))
    assert code == ExitCode.BAD_INPUT
    assert f"resource.k8s.io/{version} is not served" in err


def test_an_unknown_field_is_a_fault_with_line_and_column(explain):
    code, err, _ = explain(NEW.format(version="v1", field="cout: 2"))
    assert code == ExitCode.BAD_INPUT
    assert "claim.yaml:10:9: ResourceClaim c: spec.devices.requests[0].exactly.cout is not a field" in err
    assert "did you mean count?" in err


def test_a_wrongly_typed_field_is_a_fault_with_line_and_column(explain):
    code, err, _ = explain(NEW.format(version="v1", field='count: "2"'))
    assert code == ExitCode.BAD_INPUT
    assert "claim.yaml:10:9: ResourceClaim c: spec.devices.requests[0].exactly.count is not a whole number" in err
