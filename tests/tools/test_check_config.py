"""Files for the agents are checked before a rollout by the same code with which the agents read them."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from dra_driver.base.errors import ExitCode
from dra_driver.tools.main import run

ROOT = Path(__file__).resolve().parents[2]
MIG = """version: v1
mig-configs:
  small:
    - {devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}
"""
PLUGIN = """version: v1
sharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 4}]}}
"""


@pytest.fixture
def check(tmp_path, capsys):
    def write(text: str, *options: str):
        file = tmp_path / "file.yaml"
        file.write_text(text)
        status = run(["check-config", str(file), *options])
        return status, *capsys.readouterr()

    return write


def test_each_kind_of_file_is_recognised_by_its_content(check, capsys):
    assert run(["check-config", str(ROOT / "examples/sharing/node/rules.yaml")]) == ExitCode.OK
    assert "sharing configuration (version rules/v1, --sharing-config), no faults" in capsys.readouterr().out
    status, out, _ = check(MIG)
    assert (status, "configuration small: 1 entry" in out, "--mig-config" in out) == (ExitCode.OK, True, True)
    status, out, _ = check(PLUGIN)
    assert (status, "NVIDIA's device plugin" in out) == (ExitCode.OK, True)
    assert "renameByDefault has no effect here" in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: rules/v1\nrules:\n  - replicas: 1\n", "line 3: rules[0].replicas"),
        ("version: rules/v1\nrules:\n  - {replica: 2}\n", "rules[0].replica: unknown field"),
        ("version: rules/v2\nrules: [{replicas: 2}]\n", "expected 'rules/v1'"),
        ("rules: [{replicas: 2}]\n", "version: missing"),
        ("version: rules/v1\n", "rules: missing"),
        ("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu}]}}\n", "replicas"),
        (MIG.replace("1g.10gb", "tiny"), "'tiny' is not a profile"),
        (MIG.replace("v1", "v2"), "version: expected 'v1'"),
        (MIG.replace("mig-enabled", "enabled"), "unknown field"),
        ("version: v1\n", "is not a file that an agent reads"),
        ("[1, 2]\n", "is not a file that an agent reads"),
        ("a: [", "not YAML"),
    ],
)
def test_a_fault_is_reported_with_its_place(check, text, said):
    status, out, err = check(text)
    assert (status, out) == (ExitCode.BAD_INPUT, "")
    assert said in err
    assert "Traceback" not in err


def test_every_file_is_checked_and_one_with_faults_decides_the_exit_status(tmp_path, capsys):
    for name, text in (("a.yaml", "version: v1\n"), ("b.yaml", MIG)):
        (tmp_path / name).write_text(text)
    files = [str(tmp_path / name) for name in ("a.yaml", "missing.yaml", "b.yaml")]
    assert run(["check-config", *files]) == ExitCode.BAD_INPUT
    out, err = capsys.readouterr()
    assert "b.yaml: configurations of the MIG manager" in out
    assert "missing.yaml can't be read" in err


def test_tenants_by_namespace_need_rules_that_name_namespaces(check):
    text = "version: rules/v1\nrules: [{replicas: 2, sharing: {strategy: MPS}}]\n"
    assert check(text)[0] == ExitCode.OK
    status, _, err = check(text, "--mps-tenants", "namespace")
    assert (status, "names the namespaces it serves" in err) == (ExitCode.BAD_INPUT, True)


def test_the_values_of_the_chart_are_not_taken_for_a_sharing_configuration(capsys):
    values = Path(__file__).parents[2] / "deploy/helm/values.yaml"
    assert run(["check-config", str(values)]) == ExitCode.BAD_INPUT
    assert "is not a file that an agent reads" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "used_by", "said"),
    [
        ("version: health/v1\nfaults: {thermal: {effect: NoSchedule}}\n", "--health-policy", "thermal: NoSchedule"),
        ("version: remediation/v1\nactions: {gpu-lost: none}\n", "--remediation-policy", "needs-reset: reset"),
    ],
)
def test_a_policy_is_recognised_with_the_flag_that_takes_it(check, text, used_by, said):
    status, out, _ = check(text)
    assert (status, used_by in out, said in out) == (ExitCode.OK, True, True)


def test_all_mistakes_of_a_policy_are_listed(check):
    status, _, err = check("version: remediation/v1\nactions: {gpu-lost: reset}\ntries: 0\n")
    assert (status, "a reset does not cure gpu-lost" in err, "tries" in err) == (ExitCode.BAD_INPUT, True, True)


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_standard_input_is_checked_like_a_file(name, monkeypatch, capsys):
    def given(text: str) -> int:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return run(["check-config", name])

    assert (given(MIG), "configuration small: 1 entry" in capsys.readouterr().out) == (ExitCode.OK, True)
    assert given("version: rules/v1\nrules:\n  - replicas: 1\n") == ExitCode.BAD_INPUT
    assert "sharing configuration /dev/stdin has 1 mistake:\n  line 3: rules[0].replicas" in capsys.readouterr().err


def test_standard_input_is_one_file(capsys):
    assert run(["check-config", "-", "-"]) == ExitCode.USAGE
    assert "standard input can be read only once" in capsys.readouterr().err


CLAIM = """apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: part}
spec:
  devices:
    requests: [{name: gpu, exactly: {deviceClassName: gpu.amd.com}}]
    config:
      - opaque:
          driver: DRIVER
          parameters: {apiVersion: gpu.resource.amd.com/v1alpha1, kind: GpuConfig, computeUnits: {count: 76}}
"""


def test_the_configs_in_manifests_are_checked_for_their_driver(check):
    status, out, _ = check(CLAIM.replace("DRIVER", "gpu.amd.com"))
    assert status == ExitCode.OK
    assert "ResourceClaim part: spec.devices.config[0].opaque.parameters: for gpu.amd.com" in " ".join(out.split())
    two = "\n---\n".join(CLAIM.replace("DRIVER", driver) for driver in ("gpu.amd.com", "gpu.intel.com"))
    status, _, err = check(two)
    assert status == 3
    assert "ResourceClaim part: spec.devices.config[0].opaque.parameters.apiVersion: must be resource.nvidia" in err
    assert "computeUnits: unknown field" in err
    assert "[input.bad-config]" in err


def test_a_config_for_an_unknown_driver_is_not_checked_and_a_manifest_may_have_no_config(check):
    _, out, _ = check(CLAIM.replace("DRIVER", "gpu.example.com"))
    assert "not validated, because gpu.example.com is not one of our drivers" in " ".join(out.split())
    status, out, _ = check("{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}")
    assert (status, "no config for a device" in out) == (ExitCode.OK, True)


def test_a_manifest_is_read_from_standard_input(monkeypatch, capsys):
    wrong = CLAIM.replace("DRIVER", "gpu.nvidia.com").encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(wrong)))
    assert run(["check-config", "-"]) == 3
    assert "[input.bad-config]" in capsys.readouterr().err
