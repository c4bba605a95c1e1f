"""Where `dra-driver cel` takes devices and selectors from: files, pipes, profiles, a cluster; and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dra_driver.base.errors import ExitCode, InputError
from dra_driver.base.text.yaml_values import MAX_NESTING
from dra_driver.kube.api import KubeApi
from dra_driver.kube.credentials import load_credentials
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.tools import main
from dra_driver.tools.world.documents import parse_documents, shipped_classes
from dra_driver.tools.world.fleet import fleet_of_slices

ROOT = Path(__file__).parents[3]
DRIVER = "gpu.nvidia.com"
MINE = f'device.driver == "{DRIVER}"'


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in ("HARDWARE", "KUBECONFIG", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def a_slice(name="s", *, generation=1, node="n1", devices=("gpu-0",), driver=DRIVER, version="v1"):
    inner = {"attributes": {"type": {"string": "gpu"}}, "capacity": {"memory": {"value": "80Gi"}}}
    rows = [{"name": one, **({"basic": inner} if version == "v1beta1" else inner)} for one in devices]
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": rows},
    }


def a_claim(*expressions, class_name=DRIVER, kind="ResourceClaim", name="c", alternatives=()):
    def request(class_name, expressions):
        return {"deviceClassName": class_name, "selectors": [{"cel": {"expression": one}} for one in expressions]}

    one = {"name": "r", "exactly": request(class_name, expressions)}
    if alternatives:
        rows = [{"name": f"a{n}", **request(class_name, [text])} for n, text in enumerate(alternatives)]
        one = {"name": "r", "firstAvailable": rows}
    spec = {"devices": {"requests": [one]}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"spec": spec} if kind == "ResourceClaimTemplate" else spec,
    }


def a_class(name, *expressions, **spec):
    rows = [{"cel": {"expression": one}} for one in expressions]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": rows, **spec},
    }


def write(path, *objects):
    path.write_text(yaml.safe_dump_all(objects))
    return str(path)


def document(capsys, *argv):
    """Run a command with JSON output."""
    status = main.run(["cel", *argv, "-o", "json"])
    out = capsys.readouterr()
    assert out.out, out.err
    return status, json.loads(out.out)


def process(*argv, stdin=b""):
    return subprocess.run(
        [sys.executable, "-m", "dra_driver", "cel", *argv],
        input=stdin,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("form", [yaml.safe_dump, json.dumps])
@pytest.mark.parametrize("dash", [("-",), ("-f", "-")])
def test_a_list_from_kubectl_is_read_from_a_pipe(form, dash):
    listed = form({"apiVersion": "v1", "kind": "List", "items": [a_slice("a"), a_slice("b", node="n2")]})
    done = process("test", "-e", MINE, "-o", "json", *dash, stdin=listed.encode())
    assert done.returncode == ExitCode.OK, done.stderr
    assert [one["node"] for one in json.loads(done.stdout)["queries"][0]["nodes"]] == ["n1", "n2"]


@pytest.mark.parametrize("command", ["test", "explain", "lint"])
def test_standard_input_that_was_not_given_is_left_to_whom_it_belongs(command, tmp_path):
    words = [sys.executable, "-m", "dra_driver", "cel", command, "-e", MINE, "--hardware", "simulated:t4"]
    (tmp_path / "lines").write_text("for the loop around it\n")
    with (tmp_path / "lines").open() as lines:
        subprocess.run(words, stdin=lines, capture_output=True, timeout=120, check=False, cwd=ROOT)
        assert os.lseek(lines.fileno(), 0, os.SEEK_CUR) == 0


def test_files_may_be_given_by_an_option_as_to_other_commands(tmp_path, capsys):
    status, found = document(capsys, "test", "-e", MINE, "-f", write(tmp_path / "a.yaml", a_slice()))
    assert (status, found["queries"][0]["counts"]["match"]) == (ExitCode.OK, 1)


def test_a_typed_list_and_beta_slices_are_read(tmp_path, capsys):
    listed = {"kind": "ResourceSliceList", "apiVersion": "resource.k8s.io/v1beta1", "items": []}
    entry = a_slice(version="v1beta1")
    del entry["kind"], entry["apiVersion"]
    listed["items"].append(entry)
    path = write(tmp_path / "s.yaml", listed)
    status, found = document(capsys, "test", "-e", f'device.attributes["{DRIVER}"].type == "gpu"', path)
    assert (status, found["queries"][0]["counts"]["match"]) == (ExitCode.OK, 1)


def test_older_generations_of_a_pool_are_left_out():
    fleet = fleet_of_slices([("a", a_slice(generation=1)), ("b", a_slice(generation=2, devices=("x", "y")))], "here")
    assert [one.name for one in fleet.devices] == ["x", "y"]
    assert "older pool generation" in fleet.notes[0]


def test_a_class_comes_from_the_files_before_the_shipped_ones(tmp_path, capsys):
    slices, claim = a_slice(), a_claim()
    status, _ = document(capsys, "test", write(tmp_path / "a.yaml", slices, claim))
    assert status == ExitCode.OK
    status, found = document(capsys, "test", write(tmp_path / "b.yaml", slices, claim, a_class(DRIVER, "false")))
    assert status == ExitCode.NO_MATCH
    assert len(found["queries"]) == 1


def test_the_shipped_classes_are_those_of_the_chart():
    folder = Path(__file__).parents[3] / "deviceclasses"
    assert {one.name for one in shipped_classes()} == {path.stem for path in folder.glob("*.yaml")}


def test_for_an_unknown_class_the_nearest_name_is_suggested(tmp_path, capsys):
    path = write(tmp_path / "a.yaml", a_slice(), a_claim(class_name="gpu.nvidia.con"))
    assert main.run(["cel", "test", path]) == ExitCode.BAD_INPUT
    assert "did you mean gpu.nvidia.com?" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "Job", "ReplicaSet"])
def test_the_claim_templates_of_a_workload_are_tested(kind, tmp_path, capsys):
    pods = {"spec": {"containers": [], "resourceClaims": [{"name": "x", "resourceClaimTemplateName": "t"}]}}
    owner = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "w"}, "spec": {"template": pods}}
    template = a_claim(kind="ResourceClaimTemplate", name="t")
    status, found = document(capsys, "test", write(tmp_path / "a.yaml", a_slice(), owner, template))
    assert status == ExitCode.OK
    assert found["queries"][0]["usedBy"] == [f"{kind} w"]
    assert main.run(["cel", "test", write(tmp_path / "b.yaml", a_slice(), owner)]) == ExitCode.BAD_INPUT


def test_the_class_of_an_extended_resource_is_tested(tmp_path, capsys):
    limits = {"resources": {"limits": {"nvidia.com/gpu": 1, "cpu": 2}}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [limits]}}
    mine = a_class("mine", MINE, extendedResourceName="nvidia.com/gpu")
    status, found = document(capsys, "test", write(tmp_path / "a.yaml", a_slice(), pod, mine))
    assert (status, [one["query"] for one in found["queries"]]) == (ExitCode.OK, ["nvidia.com/gpu (class mine)"])


@pytest.mark.parametrize("newest", ["old", "new"])
def test_of_two_classes_of_an_extended_resource_the_newest_is_tested(tmp_path, capsys, newest):
    limits = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [limits]}}
    classes = [a_class(name, MINE, extendedResourceName="nvidia.com/gpu") for name in ("old", "new")]
    for one in classes:
        year = 2025 if one["metadata"]["name"] == newest else 2024
        one["metadata"]["creationTimestamp"] = f"{year}-01-01T00:00:00Z"
    _, found = document(capsys, "test", write(tmp_path / "a.yaml", a_slice(), pod, *classes))
    assert found["queries"][0]["query"] == f"nvidia.com/gpu (class {newest})"


def test_a_class_that_is_still_to_be_made_is_newer_than_any_other(tmp_path, capsys):
    limits = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [limits]}}
    made, planned = (a_class(name, MINE, extendedResourceName="nvidia.com/gpu") for name in ("a", "b"))
    made["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z"
    _, found = document(capsys, "test", write(tmp_path / "a.yaml", a_slice(), pod, made, planned))
    assert found["queries"][0]["query"] == "nvidia.com/gpu (class b)"


def test_one_alternative_that_matches_is_enough(tmp_path, capsys):
    path = write(tmp_path / "a.yaml", a_slice(), a_claim(alternatives=["false", "true"]))
    assert document(capsys, "test", path)[0] == ExitCode.OK
    path = write(tmp_path / "b.yaml", a_slice(), a_claim(alternatives=["false", "false"]))
    assert document(capsys, "test", path)[0] == ExitCode.NO_MATCH


def test_a_cluster_gives_devices_classes_and_claims(tmp_path, capsys, monkeypatch):
    api = EmbeddedApi()
    api.start()
    try:
        kubeconfig = str(api.write_kubeconfig(tmp_path / "kubeconfig"))
        kube = KubeApi(load_credentials(kubeconfig))
        group = "/apis/resource.k8s.io/v1"
        kube.request("POST", "/api/v1/nodes", body={"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        kube.request("POST", f"{group}/resourceslices", body=a_slice())
        kube.request("POST", f"{group}/deviceclasses", body=a_class("mine", MINE))
        claim = a_claim('device.attributes["gpu.nvidia.com"].type == "gpu"', class_name="mine")
        kube.request("POST", f"{group}/namespaces/default/resourceclaims", body=claim)
        kube.close()
        entry = {"name": "x", "resourceClaimName": "c"}
        pod = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"resourceClaims": [entry]}}
        monkeypatch.setenv("KUBECONFIG", kubeconfig)
        for options in (["--kubeconfig", kubeconfig], []):
            status, found = document(capsys, "test", *options, write(tmp_path / "p.yaml", pod))
            assert (status, found["queries"][0]["counts"]["match"]) == (ExitCode.OK, 1)
            assert len(found["queries"][0]["selectors"]) == 2
        assert document(capsys, "test", "-e", MINE, "--fleet", "l40s")[1]["sources"] == ["profile l40s"]
    finally:
        api.stop()
    assert main.run(["cel", "test", "--kubeconfig", kubeconfig, "-e", MINE]) == ExitCode.ENVIRONMENT


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "{" * 100_000,
        "- " * 50_000,
        "? " * 50_000,
        "\n".join(" " * n + "a:" for n in range(2_000)),
        '["]", ' * 5_000,
        "a: &a [*a, *a]",
        "&a [*a]",
        "- !!python/object/apply:os.system [id]",
        "kind: [",
        "\t",
        "kind: ResourceSlice\nspec: []",
        "kind: ResourceSlice\nspec: {driver: d, devices: 3}",
        "kind: ResourceSlice\nspec: {driver: d, devices: [3]}",
        "kind: DeviceClass\nspec: {selectors: [{cel: {expression: 3}}]}",
        "kind: ResourceClaim\nspec: {devices: {requests: [{name: r}]}}",
        "kind: Pod\nspec: []",
        "kind: ConfigMap",
        '{"kind": "List", "items": [3]}',
        "a: 2024-01-01",
        "\0",
        "1e999999999999",
    ],
)
def test_a_file_that_is_wrong_is_named_without_a_traceback(text, tmp_path, capsys):
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    for command in ("test", "explain", "lint"):
        status = main.run(["cel", command, "-e", "true", "--fleet", "l40s", str(path)])
        err = capsys.readouterr().err
        assert status == ExitCode.BAD_INPUT, err
        assert "Traceback" not in err
        assert str(path) in err or "the files contain" in err or "DeviceClass ?" in err


def test_nesting_up_to_the_limit_is_read():
    wire = next(parse_documents("kind: x\na: " + "[" * (MAX_NESTING - 5) + "]" * (MAX_NESTING - 5), "here")).wire
    assert wire["kind"] == "x"
    with pytest.raises(InputError, match="levels deep"):
        next(parse_documents("kind: x\na: " + "[" * MAX_NESTING + "]" * MAX_NESTING, "here"))


@pytest.mark.parametrize(
    ("argv", "status", "said"),
    [
        (["test", "--fleet", "l40s"], ExitCode.USAGE, "no selector"),
        (["test", "-e", "true", "--fleet", "nope"], ExitCode.BAD_INPUT, "shipped profiles"),
        (["test", "-e", "true", "--fleet", "l40s", "--gate", "X=true"], ExitCode.USAGE, "no selector depends"),
        (["test", "-e", "true", "--fleet", "l40s", "--gate", "DRAConsumableCapacity"], ExitCode.USAGE, "is not NAME"),
        (["test", "-e", "true", "--fleet", "l40s", "--gate", "DRAListTypeAttributes=true"], ExitCode.USAGE, "1.36"),
        (["test", "-e", "true", "--kubeconfig", "/nowhere"], ExitCode.BAD_INPUT, "/nowhere"),
        (["test", "-e", "true", "/nowhere"], ExitCode.BAD_INPUT, "/nowhere"),
        (["explain", "-e", "true", "--fleet", "l40s", "--device", "gpu-0000-38-00-1"], ExitCode.USAGE, "did you mean"),
        (["batch", "/nowhere"], ExitCode.BAD_INPUT, "/nowhere"),
    ],
)
def test_a_wrong_command_line_is_explained(argv, status, said, capsys):
    assert main.run(["cel", *argv]) == status
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


def test_without_devices_the_ways_to_give_them_are_named():
    done = process("test", "-e", "true")
    assert done.returncode in {ExitCode.USAGE, ExitCode.BAD_INPUT, ExitCode.OK}  # OK on a machine with GPUs
    if done.returncode == ExitCode.USAGE:
        assert b"--fleet PROFILE" in done.stderr


@pytest.mark.parametrize("text", [MINE, f"device.driver = {DRIVER!r}", "true", 'size("a") == 1', "device.driver"])
def test_an_argument_that_is_no_file_and_reads_as_an_expression_is_one(text, capsys):
    named, found = document(capsys, "test", text, "--fleet", "l40s")
    given, same = document(capsys, "test", "-e", text, "--fleet", "l40s")
    assert named == given
    assert found["queries"] == same["queries"]
    assert found["queries"][0]["query"] == text
    assert found["notes"] == ["read as an expression, since no file has such a name (-e says so)", *same["notes"]]


@pytest.mark.parametrize("path", ["claim.yaml", "no/such", "device.json", "claim (1).yaml", "./device", "a-b.c"])
def test_an_argument_that_reads_as_a_path_is_a_file_that_is_missing(path, capsys):
    assert main.run(["cel", "test", path, "--fleet", "l40s"]) == ExitCode.BAD_INPUT
    assert f"{path} can't be read: No such file" in capsys.readouterr().err


def test_a_file_whose_name_reads_as_an_expression_is_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "true", a_claim(MINE))
    _, found = document(capsys, "test", "true", "--fleet", "l40s")
    assert found["queries"][0]["query"] == "claim c, request r"


@pytest.mark.parametrize(
    ("options", "is_told"),
    [
        (["--fleet", "dgx-h100"], True),
        (["--fleet", "l40s"], False),
        (["--fleet", "dgx-h100", "--mig", "static"], False),
        (["--fleet", "dgx-h100", "--gate", "DRAPartitionableDevices=false"], False),
        (["--fleet", "dgx-h100", "--kubernetes", "1.36"], False),
    ],
)
def test_partitions_that_a_default_of_the_version_holds_back_are_told(options, is_told, capsys):
    _, found = document(capsys, "test", "-e", "true", *options)
    note = (
        "simulated nodes: existing partitions only, the default of 1.35 "
        "(on demand: --gate DRAPartitionableDevices=true)"
    )
    assert (note in found["notes"]) is is_told
