"""`dra-driver slices` as a table: figures for each node, namespace and class, folded so that large fleets are short."""

from __future__ import annotations

import json
import time

import pytest
import yaml

from dra_driver.base.errors import ExitCode
from dra_driver.tools.fleet.summary import MAX_ROWS, NodeRow, compact
from dra_driver.tools.main import INTERRUPTED, run

LINES_OF_TWO_SCREENS = 100
DRIVER = "gpu.nvidia.com"


def gpu(name, kind="gpu", **more):
    attributes = {"type": {"string": kind}, "productName": {"string": "NVIDIA H100"}}
    attributes |= {key: {"string": value} for key, value in more.items()}
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": "81559Mi"}}}


def slice_of(node, devices, driver=DRIVER):
    pool = {"name": f"{node}/{driver}", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices}
    name = f"{node}-{driver}"
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


def claim_of(namespace, name, *devices, node="a", class_name="gpu.nvidia.com"):
    requests = [{"name": "gpu", "exactly": {"deviceClassName": class_name}}]
    pool = f"{node}/{DRIVER}"
    results = [{"request": "gpu", "driver": DRIVER, "pool": pool, "device": one} for one in devices]
    status = {"allocation": {"devices": {"results": results}}} if devices else {}
    metadata = {"name": name, "namespace": namespace}
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata}
    return {**head, "spec": {"devices": {"requests": requests}}, "status": status}


def test_watching_simulated_nodes_names_their_rules_once(monkeypatch, capsys):
    looks = []

    def sleep(_seconds):
        looks.append(1)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    assert run(["slices", "--fleet", "t4", "--watch"]) == INTERRUPTED
    assert len(looks) == 3
    assert capsys.readouterr().err.count("rules of Kubernetes") == 1


@pytest.fixture
def fleet(tmp_path, monkeypatch):
    """A file of three nodes: GPUs and network cards, partitions, and replicas."""
    monkeypatch.setenv("COLUMNS", "300")
    parts = [gpu(f"gpu-0-mig-1g-{n}", "mig", profile="1g.10gb") for n in range(3)]
    replicas = [gpu(f"gpu-0-share-{n}", "gpu-share") for n in range(4)]
    faulty = {**gpu("gpu-1"), "taints": [{"key": "gpu.nvidia.com/fault", "effect": "NoSchedule"}]}
    objects = [
        slice_of("a", [gpu("gpu-0"), faulty]),
        slice_of("a", [{"name": "nic-0"}, {"name": "nic-1"}], driver="dra.net"),
        slice_of("b", parts),
        slice_of("c", replicas),
        claim_of("team-a", "one", "gpu-0"),
        claim_of("team-b", "two", "gpu-0-mig-1g-0", "gpu-0-mig-1g-1", node="b", class_name="mig.nvidia.com"),
        claim_of("team-b", "waits"),
    ]
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    return str(path)


def shown(capsys, *words):
    status = run(["slices", *words])
    return status, [line.split() for line in capsys.readouterr().out.splitlines()]


def figures(capsys, fleet):
    run(["slices", "-f", fleet, "-o", "json"])
    return json.loads(capsys.readouterr().out)["figures"]


def test_gpus_are_counted_and_network_cards_are_not(fleet, capsys):
    rows = {row["node"]: row for row in figures(capsys, fleet)["nodes"]}
    a = rows["a"]
    assert (a["gpus"], a["otherDevices"], a["wholeFree"], a["held"], a["sick"]) == (2, 2, 0, 1, 1)
    assert a["products"] == {"NVIDIA H100": 2}


def test_partitions_and_replicas_of_one_gpu_count_as_one_gpu(fleet, capsys):
    rows = {row["node"]: row for row in figures(capsys, fleet)["nodes"]}
    assert (rows["b"]["gpus"], rows["b"]["wholeFree"], rows["b"]["partitionsFree"]) == (1, 0, {"1g.10gb": 1})
    assert (rows["c"]["gpus"], rows["c"]["wholeFree"], rows["c"]["partitionsFree"]) == (1, 0, {"replica": 4})


def test_nothing_is_free_in_an_incomplete_pool_and_each_gpu_counts_as_faulty_once(tmp_path, capsys):
    part = slice_of("a", [gpu("gpu-0"), gpu("gpu-1")])
    part["spec"]["pool"]["resourceSliceCount"] = 2
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump_all([part, claim_of("team-a", "gone", "gpu-0", node="z")]))
    rows = {row["node"]: row for row in figures(capsys, str(path))["nodes"]}
    assert {name: (row["gpus"], row["wholeFree"], row["sick"]) for name, row in rows.items()} == {
        "a": (2, 0, 2),
        "z": (1, 0, 1),
    }


def test_by_namespace_there_is_a_row_for_each_namespace(fleet, capsys):
    status, lines = shown(capsys, "-f", fleet, "--by", "namespace")
    assert status == ExitCode.OK
    assert ["team-b", "2", "2", "1"] in lines
    assert ["team-a", "1", "1", "0"] in lines
    assert not any("ResourceSlices" in line for line in lines), "no tree below it"


def test_by_class_there_is_a_row_for_each_class(fleet, capsys):
    _, lines = shown(capsys, "-f", fleet, "--by", "class")
    assert ["mig.nvidia.com", "1", "2", "0"] in lines
    assert ["gpu.nvidia.com", "2", "1", "1"] in lines


def test_one_node_alone_is_shown_and_for_an_unknown_one_the_nearest_name_is_suggested(fleet, capsys):
    status, lines = shown(capsys, "-f", fleet, "--node", "b")
    assert status == ExitCode.OK
    assert {line[0] for line in lines if line} & {"a", "b", "c"} == {"b"}
    assert run(["slices", "-f", fleet, "--node", "bb"]) == ExitCode.BAD_INPUT
    assert "did you mean b?" in capsys.readouterr().err


def test_a_hundred_nodes_fit_on_two_screens_of_eighty_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for more in ((), ("--by", "namespace"), ("--by", "class")):
        run(["slices", "--fleet", "dgx-h100=100", "--kubernetes", "1.36", *more])
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) <= LINES_OF_TWO_SCREENS
        assert all(len(line) <= 80 for line in lines)
        assert any(line.rstrip().endswith(("faulty", "claims waiting")) for line in lines[:4]), "every title is whole"
        assert any(line.startswith("100 nodes, 800 GPUs: 800 free as a whole") for line in lines)


def test_each_of_many_different_nodes_has_a_short_row():
    rows = [NodeRow(f"n{n}", 8, 8 - n % 9, (("1g", n % 3), ("7g", 1)), n % 9) for n in range(MAX_ROWS + 1)]
    short = compact(rows)
    assert all(row.is_compact and len(row.partitions) == 1 for row in short)
    assert sum(row.count for row in short) == len(rows)
    assert compact(rows[:MAX_ROWS]) == rows[:MAX_ROWS]


def test_a_fleet_in_which_every_node_differs_fits_on_two_screens(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    parts = [gpu(f"gpu-{n}-mig-1g-0", "mig", profile=f"{n % 7}g.10gb") for n in range(100)]
    objects = [slice_of(f"dgx-{n:03}", [gpu(f"gpu-{m}") for m in range(n % 9)] + parts[: n % 11]) for n in range(100)]
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    run(["slices", "-f", str(path)])
    assert len(capsys.readouterr().out.splitlines()) <= LINES_OF_TWO_SCREENS * 2.5  # a hundred rows of their own


@pytest.mark.parametrize("items", ["[]", "null"])
def test_the_output_says_that_the_files_have_no_slices(tmp_path, capsys, items):
    (tmp_path / "none.yaml").write_text(f"kind: List\napiVersion: v1\nitems: {items}\n")
    assert run(["slices", "-f", str(tmp_path / "none.yaml")]) == 0
    out = capsys.readouterr().out
    assert "There is no ResourceSlice in the files." in out
    assert "0 nodes, 0 GPUs" in out


@pytest.mark.parametrize("option", [["-n", "team-a"], ["-l", "a=b"]], ids=str)
def test_options_that_leave_no_node_are_not_taken_for_a_missing_driver(capsys, option):
    assert run(["slices", "--fleet", "t4", *option]) == 0
    out = capsys.readouterr().out
    assert "No node is left" in out
    assert "published" not in out


@pytest.mark.parametrize("name", ["UPPER CASE", "a/../b", "x" * 64])
def test_a_name_that_cannot_be_a_namespace_is_refused(name, capsys):
    assert run(["claims", "-n", name]) == 2
    assert "is not the name of a namespace" in capsys.readouterr().err
