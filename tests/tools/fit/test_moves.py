"""`simulate --defrag` and the notes of `explain` on making room: which pods would have to move."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from dra_driver.base.errors import ExitCode
from dra_driver.tools.main import run
from dra_driver.tools.world.world import World, add_profiles, apply_rules

ROOT = Path(__file__).resolve().parents[3]
SCENARIO = "examples/scenarios/fragmented.yaml"
PARTS = {"one": "gpu-0000-1b-00-0-mig-3g40gb-9-4", "two": "gpu-0000-43-00-0-mig-3g40gb-9-0"}
PROFILE = 'device.attributes["gpu.nvidia.com"].profile == "3g.40gb"'


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_the_fewest_moves_are_proposed_as_the_page_shows_them(capsys):
    page = (ROOT / "docs/mig.md").read_text()
    [shown] = re.findall(rf"\$ dra-driver simulate {SCENARIO} --defrag\n…\n(.*?)```", page, re.DOTALL)
    assert run(["simulate", SCENARIO, "--defrag"]) == ExitCode.NO_MATCH
    said = capsys.readouterr().out
    assert [line.rstrip() for line in shown.splitlines() if line.strip()] == [
        line.rstrip() for line in said[said.index("training would fit") :].splitlines() if line.strip()
    ]


def test_moves_are_written_as_json_and_only_with_the_option(capsys):
    run(["simulate", SCENARIO, "--defrag", "-o", "json"])
    [found] = json.loads(capsys.readouterr().out)["rearrangements"]
    assert (found["job"], found["node"], len(found["devices"])) == ("training", "dgx-h100-1", 4)
    [move] = found["moves"]
    assert (move["job"], move["source"], move["target"]) == ("part-2", "dgx-h100-1", "dgx-h100-1")
    run(["simulate", SCENARIO, "-o", "json"])
    assert json.loads(capsys.readouterr().out)["rearrangements"] == []


def test_no_moves_are_proposed_for_a_claim_that_no_node_could_ever_meet(tmp_path, capsys):
    scenario = yaml.safe_load((ROOT / SCENARIO).read_text())
    scenario["timeline"][-1]["arrive"]["requests"][0]["exactly"]["count"] = 9
    (tmp_path / "scenario.yaml").write_text(yaml.safe_dump(scenario))
    run(["simulate", str(tmp_path / "scenario.yaml"), "--defrag"])
    assert "training: no moves found that make room for it" in capsys.readouterr().out


def held(name: str, device: str, pool: str) -> list[dict]:
    """Return a running pod with its claim, which holds a device."""
    meta = {"name": name, "namespace": "default"}
    exactly = {"deviceClassName": "mig.nvidia.com", "selectors": [{"cel": {"expression": PROFILE}}]}
    result = {"request": "part", "driver": "gpu.nvidia.com", "pool": pool, "device": device}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": meta,
        "spec": {"devices": {"requests": [{"name": "part", "exactly": exactly}]}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }
    spec = {
        "nodeName": "dgx-h100-1",
        "containers": [{"name": "main", "image": "x"}],
        "resourceClaims": [{"name": "part", "resourceClaimName": name}],
    }
    return [claim, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Running"}}]


def test_explain_says_where_a_claim_would_fit_if_a_pod_were_elsewhere(tmp_path, capsys):
    world = World()
    apply_rules(world, "1.36", {}, "dynamic")
    add_profiles(world, ["dgx-h100"])
    pool = world.of("ResourceSlice")[0]["spec"]["pool"]["name"]
    asked = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "big"},
        "spec": {
            "devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 7}}]}
        },
    }
    objects = [asked, *(one for name, device in PARTS.items() for one in held(name, device, pool))]
    (tmp_path / "world.yaml").write_text(yaml.safe_dump_all(objects))
    words = ["explain", "claim", "big", "-f", str(tmp_path / "world.yaml"), "--fleet", "dgx-h100"]
    assert run([*words, "--kubernetes", "1.36", "-o", "json"]) == ExitCode.NO_MATCH
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert "would fit on dgx-h100-1 if one were not on gpu-0000-1b-00-0-mig-3g40gb-9-4 but on " in " ".join(notes)


def test_a_gpu_cpus_and_a_network_card_of_three_drivers_are_placed_on_one_numa_node(capsys):
    files = ["-f", "examples/numa/gpu-cpu-nic.yaml", "-f", "examples/numa/other-drivers.yaml"]
    for version in ("1.35", "1.36", "1.37"):
        words = ["simulate", *files, "--fleet", "demo-h100", "--kubernetes", version, "-o", "json"]
        assert run(words) == ExitCode.OK
        [placed] = json.loads(capsys.readouterr().out)["moments"][0]["placed"]
        # The only card is behind the second NUMA node, where the GPUs from 9d on are.
        assert placed["devices"] == ["gpu-0000-9d-00-0", "cpudevnuma001", "card-1"]
