"""explain and simulate as a user runs them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from dra_driver.base.errors import ExitCode
from dra_driver.tools.main import run

ROOT = Path(__file__).resolve().parents[3]
CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: {name}}}
spec:
  devices:
    requests:
    - name: gpu
      exactly: {{deviceClassName: gpu.nvidia.com, count: {count}}}
"""


@pytest.fixture
def claims(tmp_path):
    path = tmp_path / "claims.yaml"
    path.write_text("---".join([CLAIM.format(name="small", count=2), CLAIM.format(name="big", count=9)]))
    return str(path)


def test_explain_says_whether_a_claim_fits_and_so_does_its_exit_status(claims, capsys):
    assert run(["explain", "claim", "small", "-f", claims, "--fleet", "dgx-h100=2"]) == ExitCode.OK
    assert "fits on 2 of 2 nodes" in capsys.readouterr().out
    assert run(["explain", "claim", "big", "-f", claims, "--fleet", "dgx-h100"]) == ExitCode.NO_MATCH
    assert "request gpu wants 9, 8 of 8 devices can be had" in capsys.readouterr().out


def test_a_pod_that_shares_a_claim_gets_the_device_that_the_claim_holds(capsys):
    shared = str(ROOT / "examples/resourceclaims/03-two-pods-share.yaml")
    assert run(["explain", "-f", shared, "--fleet", "l40s"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "pod first: fits on l40s-1: gpu-0000-38-00-0 for gpu" in out
    assert "pod second: fits on l40s-1: gpu-0000-38-00-0, which claim default/shared-gpu holds already" in out


@pytest.mark.parametrize("count", ["0", "-1", "1.5", "100001", "x", ""])
def test_a_fleet_of_no_or_too_many_nodes_is_refused(count, claims, capsys):
    assert run(["explain", "-f", claims, "--fleet", f"l40s={count}"]) == ExitCode.USAGE
    assert "with a count from 1 to 100,000" in capsys.readouterr().err


def test_a_count_of_0_means_1_as_the_api_server_defaults_it(tmp_path, capsys):
    (tmp_path / "claim.yaml").write_text(CLAIM.format(name="c", count=0))
    assert run(["explain", "-f", str(tmp_path / "claim.yaml"), "--fleet", "l40s"]) == ExitCode.OK
    assert "fits on l40s-1: gpu-0000-38-00-0 for gpu" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["explain", "simulate"])
@pytest.mark.parametrize(
    ("count", "why"), [("-1", "greater than zero"), ("2, allocationMode: All", "not be specified")]
)
def test_a_count_that_the_api_server_refuses_is_bad_input(command, count, why, tmp_path, capsys):
    (tmp_path / "claim.yaml").write_text(CLAIM.format(name="c", count=count))
    assert run([command, "-f", str(tmp_path / "claim.yaml"), "--fleet", "l40s"]) == ExitCode.BAD_INPUT
    err = capsys.readouterr().err
    assert ":9:" in err
    assert "ResourceClaim c: spec.devices.requests[0].exactly.count" in err
    assert why in err


MPS = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: shared}
spec:
  selectors: [{cel: {expression: 'device.driver == "gpu.amd.com"'}}]
  config:
  - opaque:
      driver: gpu.amd.com
      parameters:
        apiVersion: resource.nvidia.com/v1beta1
        kind: GpuConfig
        sharing: {strategy: MPS}
"""


@pytest.mark.parametrize("command", [("explain", "-f"), ("simulate", "-f"), ("cel", "lint")])
def test_mps_on_the_gpus_of_another_vendor_is_bad_input(command, tmp_path, capsys):
    path = tmp_path / "class.yaml"
    path.write_text(MPS + "---" + CLAIM.format(name="c", count=1))
    assert run([*command, str(path), "--fleet", "l40s"]) == ExitCode.BAD_INPUT
    err = capsys.readouterr().err
    assert "MPS is for NVIDIA's GPUs, not for devices of gpu.amd.com" in err
    assert "class.yaml:13:" in err
    assert "[input.bad-config]" in err
    path.write_text(path.read_text().replace("gpu.amd.com", "gpu.nvidia.com"))
    assert run([*command, str(path), "--fleet", "l40s"]) != ExitCode.BAD_INPUT


def test_explain_of_something_unknown_is_bad_input(claims, capsys):
    assert run(["explain", "claim", "none", "-f", claims, "--fleet", "dgx-h100"]) == ExitCode.BAD_INPUT


def test_explain_writes_its_funnel_as_json(claims, capsys):
    run(["explain", "claim", "big", "-f", claims, "--fleet", "dgx-h100", "-o", "json"])
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is False
    assert found["nodes"][0]["funnels"][0]["fits"] == 8


def test_simulate_runs_the_example_and_the_same_with_added_nodes(capsys):
    scenario = str(ROOT / "examples" / "scenarios" / "queue.yaml")
    assert run(["simulate", scenario, "-o", "json"]) == ExitCode.NO_MATCH
    moments = json.loads(capsys.readouterr().out)["moments"]
    assert moments[0]["event"] == {"kind": "arrive", "target": None, "jobs": ["train-1", "train-2", "train-3"]}
    assert moments[-1]["waiting"]
    assert run(["simulate", scenario, "--add-nodes", "dgx-h100=2", "-o", "json"]) == ExitCode.OK


def test_claims_of_files_arrive_in_a_simulation_and_are_placed_or_wait(claims, capsys):
    assert run(["simulate", "-f", claims, "--fleet", "dgx-h100=2", "-o", "json"]) == ExitCode.NO_MATCH
    [moment] = json.loads(capsys.readouterr().out)["moments"]
    assert [one["job"] for one in moment["placed"]] == ["default/small"]
    assert [one["job"] for one in moment["waiting"]] == ["default/big"]


@pytest.mark.parametrize("text", ["timeline: [{explode: x}]", "nothing: 1", "timeline: [a]", "["])
def test_a_wrong_scenario_is_bad_input(text, tmp_path, capsys):
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    assert run(["simulate", str(path)]) == ExitCode.BAD_INPUT


def test_a_batch_is_answered_line_by_line_also_beside_a_wrong_line(tmp_path, capsys):
    good = {"id": "a", "kubernetes": "1.35", "input": {"nodes": [{"metadata": {"name": "n"}}], "claims": []}}
    path = tmp_path / "batch.jsonl"
    path.write_text(json.dumps(good) + "\nnonsense\n")
    assert run(["simulate", "--batch", str(path)]) == ExitCode.BAD_INPUT
    first, second = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert first.pop("kind") == "AllocationVerdict"
    assert first.pop("apiVersion") == second["apiVersion"] == "cli.dra-driver/v1"
    assert first == {"id": "a", "nodes": {"n": {"ok": True, "results": [], "category": "none", "error": None}}}
    assert (second["kind"], second["line"]) == ("BatchFault", 2)


def test_slices_and_claims_print_trees_of_a_profile_and_of_files(claims, capsys):
    assert run(["slices", "--fleet", "dgx-h100"]) == ExitCode.OK
    assert "gpu-0000-1b-00-0" in capsys.readouterr().out
    assert run(["claims", "-f", claims, "-o", "json"]) == ExitCode.OK
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["claims"]] == ["default/big", "default/small"]


@pytest.mark.parametrize("command", [["explain", "claim", "small"], ["simulate"]])
@pytest.mark.parametrize(
    ("gate", "said"),
    [
        ("DRAPartitionableDevice=true", "did you mean DRAPartitionableDevices?"),
        ("NoGateAtAll=false", "known: DRA"),
        ("DRADeviceTaints=true,DRATypo=true", "--gate DRATypo"),
        ("DRAFractionalCapacityRange=true", "since 1.37, not in 1.35"),
        ("DRADeviceTaints", "is not NAME=true or NAME=false"),
    ],
)
def test_an_unknown_or_invalid_gate_is_refused(command, gate, said, claims, capsys):
    assert run([*command, "-f", claims, "--fleet", "dgx-h100", "--gate", gate]) == ExitCode.USAGE
    assert said in capsys.readouterr().err


def test_gates_may_be_given_in_one_option_or_in_several(claims, capsys):
    rows = ["--gate", "DRADeviceTaints=true, DRAPartitionableDevices=TRUE", "--gate", "DRADeviceTaints=false"]
    assert run(["explain", "claim", "small", "-f", claims, "--fleet", "dgx-h100", *rows]) == ExitCode.OK


def test_a_scenario_with_an_unknown_gate_is_refused(tmp_path, capsys):
    path = tmp_path / "scenario.yaml"
    path.write_text("fleet: {dgx-h100: 1}\ngates: {DRATypo: true}\ntimeline: []\n")
    assert run(["simulate", str(path)]) == ExitCode.BAD_INPUT
    assert f"{path}: gate DRATypo" in capsys.readouterr().err


def test_a_node_that_does_not_exist_is_an_error_with_the_names_that_do(capsys):
    words = ["explain", "-f", str(ROOT / "examples/resourceclaims/01-one-gpu.yaml"), "--fleet", "t4=2"]
    assert run([*words, "--node", "t4-1"]) == 0
    assert run([*words, "--node", "t4-3"]) == 3
    assert "there is no node t4-3 [input.missing]\n  did you mean t4-2?" in capsys.readouterr().err


def test_a_batch_with_a_fault_names_its_source(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"{}\n")))
    assert run(["simulate", "--batch", "-"]) == ExitCode.BAD_INPUT
    assert "1 line of standard input can't be answered" in capsys.readouterr().err
