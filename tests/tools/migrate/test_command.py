"""`dra-driver migrate`: streams, files, exit statuses."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import dataclass

import pytest
import yaml

from dra_driver.tools import main
from tests.support.migrate_shapes import SHAPES, expected

POD = SHAPES[0]


@dataclass
class Done:
    """The output of a command."""

    stdout: str
    stderr: str


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("COLUMNS", "500")

    def call(*arguments, stdin="", status=0):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        assert main.run(["migrate", *map(str, arguments)]) == status
        done = Done(*capsys.readouterr())
        assert "Traceback" not in done.stderr
        return done

    return call


def process(*arguments, stdin=""):
    """Run the command as a process of its own."""
    command = [sys.executable, "-m", "dra_driver", "migrate", *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)


def test_manifests_go_to_standard_output_and_messages_to_standard_error():
    done = process(POD)
    assert done.returncode == 0
    assert done.stdout == expected(POD).read_text()
    assert "ResourceClaimTemplate cuda-vectoradd-gpu was added" in " ".join(done.stderr.split())


def test_standard_input_is_read_and_several_files_become_documents():
    done = process("-", SHAPES[1], stdin=POD.read_text())
    assert done.returncode == 0, done.stderr
    kinds = [one["kind"] for one in yaml.safe_load_all(done.stdout)]
    assert kinds == ["ResourceClaimTemplate", "Pod", "ResourceClaimTemplate", "Deployment"]


def test_a_process_exits_with_the_commands_status():
    done = process("-", stdin="kind: [")
    assert (done.returncode, done.stdout) == (3, "")
    assert "[input.not-yaml]" in done.stderr


def test_files_are_written_in_place_with_their_mode_and_through_links(run, tmp_path):
    real, link = tmp_path / "real.yaml", tmp_path / "pod.yaml"
    real.write_bytes(b"\xef\xbb\xbf" + POD.read_bytes())
    real.chmod(0o640)
    link.symlink_to(real)
    assert run("--in-place", link).stdout == ""
    assert link.is_symlink()
    assert real.read_bytes() == b"\xef\xbb\xbf" + expected(POD).read_bytes()
    assert real.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pod.yaml", "real.yaml"]


def test_a_second_run_in_place_leaves_the_file_alone(run, tmp_path):
    path = tmp_path / "pod.yaml"
    path.write_text(POD.read_text())
    run("-i", path)
    before = path.stat()
    assert "nothing to change" in run("-i", path).stderr
    after = path.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_no_file_is_written_if_one_is_invalid(run, tmp_path):
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(POD.read_text())
    bad.write_text(POD.read_text().replace("nvidia.com/gpu: 1", "nvidia.com/gpu: 0.5"))
    done = run("-i", good, bad, status=3)
    assert "[input.resource]" in done.stderr
    assert good.read_text() == POD.read_text()


def test_a_folder_as_argument_means_its_files(run, tmp_path):
    (tmp_path / "all").mkdir()
    for shape in SHAPES[:3]:
        (tmp_path / "all" / shape.name).write_text(shape.read_text())
    run("-i", "all")
    for shape in SHAPES[:3]:
        assert (tmp_path / "all" / shape.name).read_text() == expected(shape).read_text()


def test_a_diff_can_be_applied(run, tmp_path):
    (tmp_path / "pod.yaml").write_text(POD.read_text())
    diff = run("--diff", "pod.yaml").stdout
    subprocess.run(["patch", "-p1"], input=diff, text=True, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "pod.yaml").read_text() == expected(POD).read_text()


def test_json_has_the_text_the_changes_the_losses_the_diff_and_the_checks(run):
    found = json.loads(run(POD, "-o", "json", "--fleet", "dgx-h100", "--diff").stdout)
    (file,) = found["files"]
    assert file["text"] == expected(POD).read_text()
    assert file["changed"] is True
    assert {row["code"] for row in file["changes"]} == {"request", "claim", "toleration", "template"}
    assert [row["code"] for row in file["losses"]] == ["topology-manager"]
    assert file["diff"].startswith("--- a/")
    (check,) = found["checks"]
    assert (check["devices"], check["nodes"], check["nodesWithEnough"]) == (8, 1, 1)


def test_a_request_that_matches_no_device_exits_1(run):
    done = run(SHAPES[5], "--fleet", "dgx-h100", status=1)
    assert "this selector matches 0 devices on 0 nodes" in done.stderr


def test_a_count_that_no_node_has_exits_1(run, tmp_path):
    path = tmp_path / "pod.yaml"
    path.write_text(POD.read_text().replace("nvidia.com/gpu: 1", "nvidia.com/gpu: 9"))
    assert "no node has the 9 that the request wants" in run(path, "--profile", "dgx-h100=2", status=1).stderr


def test_requests_are_checked_against_slices_of_a_file(run, tmp_path):
    from dra_driver.tools.world.fleet import fleet_of_profile

    devices = [one.wire for one in fleet_of_profile("l40s").devices]
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "n", "pool": pool, "devices": devices}
    wire = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec}
    (tmp_path / "slices.yaml").write_text(yaml.safe_dump(wire))
    assert f"the class matches {len(devices)} devices on 1 node" in run(POD, "--slices", "slices.yaml").stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("-i", "-"), "usage.stdin"),
        (("-", "-"), "usage.stdin"),
        (("-i", "--diff", "x.yaml"), "usage.diff"),
        (("x.yaml", "--shared", "cpu"), "usage.shared"),
        (("-", "--fleet", "dgx-h100=many"), "usage.count"),
    ],
)
def test_a_wrong_command_line_exits_2(run, arguments, code):
    assert f"[{code}]" in run(*arguments, stdin=POD.read_text(), status=2).stderr


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("kind: [", "input.not-yaml"),
        ("image: {{ .Values.x }}", "input.template"),
        ("replicas: 2\n", "input.not-an-object"),
        ("- a\n", "input.not-an-object"),
    ],
)
def test_a_file_that_is_no_manifest_exits_3(run, text, code):
    assert f"[{code}]" in run("-", stdin=text, status=3).stderr


def test_a_cluster_that_does_not_answer_exits_5(run, tmp_path):
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "contexts": [context],
        "current-context": "c",
    }
    (tmp_path / "none").write_text(yaml.safe_dump({**config, "users": [{"name": "u", "user": {"token": "t"}}]}))
    assert run(POD, "--cluster", status=5).stdout == ""


def test_help_mentions_the_main_options_and_the_exit_status(run):
    text = run("--help").stdout
    for word in ("--in-place", "--diff", "--fleet, --profile", "--cluster", "Exit status", "helm template"):
        assert word in text
