"""`dra-driver demo` as a user runs it: as a process, with the real agent as its child."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.base.errors import NodeError
from dra_driver.node.health.cases import Stage
from dra_driver.simulator.example import load_objects
from dra_driver.simulator.run import EmbeddedNode

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "resourceclaims"
SHARING = ROOT / "examples" / "sharing"


def demo(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "dra_driver", "demo", *words],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env={**os.environ, "COLUMNS": "300", **environment},
    )


def first_screen():
    """Return what the README shows of the demo."""
    text = (ROOT / "README.md").read_text()
    found = re.search(r"```console\n\$ make demo\n(.*?)```", text, re.DOTALL)
    assert found
    return [plain(line) for line in found[1].splitlines() if line not in {"...", ""}]


def plain(line):
    """Return a line without what differs from run to run, and with single blanks."""
    return re.sub(r"\d+ ms|[\d.]+ s\b|process \d+, \d+ MiB", "#", re.sub(r"\s+", " ", line)).strip()


@pytest.mark.long
def test_the_demo_meets_every_expectation_leaves_nothing_and_prints_what_the_readme_shows():
    done = demo(NODE_NAME="from-the-environment", POD_UID="not-a-pod", COLUMNS="140")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    others = [EXAMPLES.parent / name for name in ("partitions-on-demand", "sharing", "vendors", "options")]
    names = [path.name for folder in (EXAMPLES, *others) for path in sorted(folder.glob("*.yaml"))]
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("✓ ")] == names
    assert lines[-1].startswith(f"{len(names)} of {len(names)} examples came out as their files say.")
    assert len(lines) < 2 * len(names) + 60
    assert [line for line in lines if line != line.rstrip()] == [], "trailing blanks"
    assert "published: 164 devices in 8 ResourceSlices" in done.stdout
    assert done.stdout.count("25 placements  ") == 6 + 1  # one GPU of the node of the sharing examples
    printed, shown = {plain(line) for line in lines}, first_screen()
    assert len(shown) > 15
    assert [line for line in shown if line not in printed] == []


def test_with_verbose_the_demo_shows_what_each_claim_got_and_what_its_containers_see(tmp_path):
    (tmp_path / "one.yaml").write_text((EXAMPLES / "01-one-gpu.yaml").read_text())
    done = demo("--verbose", "--examples", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "after unprepare nothing is left" in done.stdout
    assert re.search(r"why: first that fits \(172 devices here, 6 of class gpu\.nvidia\.com\)", done.stdout)
    assert "env   NVIDIA_VISIBLE_DEVICES=void" in done.stdout
    assert "node  /dev/nvidia0 c 1:3 rw" in done.stdout
    assert '"kind": "k8s.gpu.nvidia.com/claim"' in done.stdout


def test_the_remediation_comes_first_in_make_demo_so_that_the_summary_of_the_examples_is_the_last_line():
    plan = ["make", "--no-print-directory", "--dry-run", "demo"]
    planned = subprocess.run(plan, cwd=ROOT, capture_output=True, text=True, check=True)
    commands = re.findall(r"dra-driver (demo.*?)(?: &&|$)", planned.stdout.strip())
    assert commands == ["demo --mending", "demo"]


def test_the_core_examples_meet_their_expectations_with_static_partitions_too():
    done = demo("--mig", "static")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "published: 14 devices in 1 ResourceSlice" in done.stdout
    count = len(list(EXAMPLES.glob("*.yaml")))
    assert f"{count} of {count} examples came out as their files say." in done.stdout


def test_the_exit_status_is_1_for_an_expectation_that_is_not_met_and_the_output_says_why(tmp_path):
    text = (EXAMPLES / "01-one-gpu.yaml").read_text()
    (tmp_path / "wrong.yaml").write_text(text.replace("holds 1 where type=gpu", "holds 2 where type=gpu"))
    (tmp_path / "right.yaml").write_text(text)
    done = demo("--examples", str(tmp_path))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "not as expected: line 8: claim one-gpu/gpu holds 2 where type=gpu: it holds 1" in done.stdout
    assert "1 of 2 examples came out as their files say" in done.stdout


def test_the_exit_status_is_3_for_an_invalid_file_before_anything_starts(tmp_path):
    (tmp_path / "bad.yaml").write_text("# expect: pod x flies\n")
    done = demo("--examples", str(tmp_path))
    assert done.returncode == 3
    assert "bad.yaml:1: " in done.stderr
    assert "starting" not in done.stdout


def test_the_exit_status_is_3_for_an_object_that_the_api_refuses(tmp_path):
    text = (EXAMPLES / "01-one-gpu.yaml").read_text()
    (tmp_path / "bad.yaml").write_text(text.replace("deviceClassName: gpu.nvidia.com", "deviceClassName: Not_A_Name"))
    done = demo("--examples", str(tmp_path))
    assert done.returncode == 3
    assert "deviceClassName" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_exit_status_is_3_for_a_missing_profile():
    done = demo("--profile", "no-such-profile")
    assert done.returncode == 3
    assert "no-such-profile" in done.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_demo_ends_its_agent_and_removes_its_folder(number, status):
    # If the tests run in the background, SIGINT is ignored, and all child processes inherit that.
    command = ["env", "--default-signal=INT", sys.executable, "-u", "-m", "dra_driver", "demo"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"\(process (\d+),", line):
            agent = int(found[1])
            words = Path(f"/proc/{agent}/cmdline").read_text().split("\0")
            folder = Path(words[words.index("--kubeconfig") + 1]).parent
            break
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors
    assert not Path(f"/proc/{agent}").exists()
    assert not folder.exists()


# -- the node of the demo ---------------------------------------------------------------------------------------------


def classes():
    paths = sorted((ROOT / "deviceclasses").glob("*.yaml"))
    return [wire for path in paths for wire in load_objects(path, path.read_text())]


def test_an_agent_that_ends_early_is_an_error_with_the_end_of_its_log():
    code = "import sys; print('it broke', file=sys.stderr); sys.exit(5)"
    node = EmbeddedNode("t4", classes=[], command=[sys.executable, "-c", code])
    with pytest.raises(NodeError, match="the agent ended with status 5") as caught:
        node.start()
    assert "it broke" in caught.value.hint
    node.stop()
    assert not node.folder.exists()


def test_an_agent_that_does_nothing_is_an_error_after_the_deadline():
    node = EmbeddedNode("t4", classes=[], command=[sys.executable, "-c", "import time; time.sleep(60)"])
    with pytest.raises(NodeError, match="not ready in time"):
        node.start(timeout_s=0.5)
    node.stop()


@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36"])
def test_the_agent_publishes_and_prepares_on_every_version(version):
    from dra_driver.simulator.example import load_example

    node = EmbeddedNode("demo-h100", classes=classes(), version=version)
    try:
        node.start()
        count = sum(len(one["spec"].get("devices", ())) for one in node.slices())
        assert count == (164 if version == "1.36" else 14)  # gates are off before
        *_, report = node.runner().run(load_example(EXAMPLES / "06-mig-profile.yaml"))
        assert report.is_good, (report.unmet, report.left)
    finally:
        status = node.stop()
    assert status == 0


@pytest.mark.parametrize("version", ["1.34", "1.35"])
def test_claims_for_replicas_are_met_where_the_scheduler_has_no_consumable_capacity(version):
    from dra_driver.simulator.example import load_example

    folder = SHARING / "node"
    node = EmbeddedNode(str(folder / "profile.yaml"), classes=classes(), version=version, sharing=folder / "rules.yaml")
    try:
        node.start()
        devices = [device for one in node.slices() for device in one["spec"]["devices"]]
        kinds = [device["attributes"]["type"]["string"] for device in devices]
        assert {kind: kinds.count(kind) for kind in kinds} == {"gpu": 2, "gpu-share": 8, "mig-share": 28}
        assert not any("allowMultipleAllocations" in device for device in devices)
        for name in ("01-replicas", "03-time-slices", "04-mps-with-limits"):
            example = load_example(SHARING / f"{name}.yaml")
            expected = tuple(s for s in example.expects if " takes " not in s.text)
            *_, report = node.runner().run(replace(example, expects=expected))
            assert report.is_good, (name, report.unmet, report.left)
    finally:
        status = node.stop()
    assert status == 0


@pytest.mark.long
def test_the_remediation_of_a_gpu_is_shown_from_its_fault_to_its_return():
    command = [sys.executable, "-m", "dra_driver", "demo", "--mending"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    stages = [line.split()[2] for line in done.stdout.splitlines() if " s  " in line]
    assert (done.returncode, stages[0], stages[-1]) == (0, "detected", "returned"), done.stdout + done.stderr
    assert stages == [str(stage) for stage in Stage if stage is not Stage.ESCALATED]
