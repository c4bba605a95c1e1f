"""`dra-driver cel verify` and `cel record`: tests of selectors, run and written."""

from __future__ import annotations

import json
import shlex
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml

from dra_driver.base.errors import ExitCode
from dra_driver.tools import main

ROOT = Path(__file__).parents[3]
DRIVER = 'device.driver == "gpu.nvidia.com"'
HOPPER = f'{DRIVER} && device.attributes["gpu.nvidia.com"].architecture == "Hopper"'


def write(path, *tests, **more):
    path.write_text(yaml.safe_dump({"version": "selector-tests/v1", "tests": list(tests), **more}))
    return path


def expecting(expression, *expect):
    return {"name": "t", "expression": expression, "expect": list(expect)}


def verified(capsys, path):
    """Return the exit status, and why each test fails."""
    status = main.run(["cel", "verify", str(path), "-o", "json"])
    captured = capsys.readouterr()
    return status, [row["failures"] for row in json.loads(captured.out)["tests"]] if captured.out else captured.err


@pytest.mark.parametrize(
    "expect",
    [
        [{"match": 8, "of": "dgx-h100"}],
        [{"match": "all", "of": "dgx-h100", "none-of": "t4"}],
        [{"match": 8, "of": "dgx-h100", "none-of": ["t4", "l40s"]}],
        [{"match": ["gpu-0000-47-00-0"], "of": "mixed"}],
        [{"none-of": ["t4"]}, {"match": 8, "of": "hgx-h200"}],
    ],
)
def test_a_test_passes_if_its_devices_match_and_no_others(expect, tmp_path, capsys):
    if isinstance(expect[0].get("match"), list):
        expect[0]["match"] = names_of_mixed(capsys)
    path = write(tmp_path / "a.selectors.yaml", expecting(HOPPER, *expect))
    assert verified(capsys, path) == (ExitCode.OK, [[]])


def names_of_mixed(capsys):
    main.run(["cel", "test", "-e", HOPPER, "--fleet", "mixed", "-o", "json"])
    (query,) = json.loads(capsys.readouterr().out)["queries"]
    return [device["device"] for node in query["nodes"] for device in node["match"]]


@pytest.mark.parametrize(
    ("expression", "expect", "words"),
    [
        (HOPPER, {"match": 7, "of": "dgx-h100"}, ["dgx-h100: 8 devices match", "expected 7"]),
        (HOPPER, {"match": 1, "of": "t4", "none-of": "l40s"}, ["nearest miss: architecture", "expected 1"]),
        (DRIVER, {"match": 8, "of": "dgx-h100", "none-of": "t4"}, ["t4: ", "expected none"]),
        (
            HOPPER,
            {"match": ["gpu-7", "gpu-0000-1b-00-0"], "of": "dgx-h100"},
            ["gpu-7 should match", "should not match"],
        ),
        (HOPPER, {"match": 8, "of": "dgx-h300"}, ["'dgx-h300' is neither a shipped profile nor a file"]),
        (HOPPER, {"none-of": "t4"}, ["no device matches: a test names at least one that does"]),
        (HOPPER, {"match": 0, "of": "t4"}, ["no device matches: a test names at least one that does"]),
        ("device.driver = 1", {"match": 8, "of": "dgx-h100"}, ["does not compile"]),
        (
            'device.attributes["gpu.nvidia.com"].nvlinkCount > 1 || true',
            {"match": "all", "of": "dgx-h100", "none-of": "mixed"},
            ["mixed: "],
        ),
        (
            'device.attributes["gpu.nvidia.com"].nvlinkCount > 0',
            {"match": 8, "of": "dgx-h100", "none-of": "l40s"},
            ["l40s: on 4 devices the selector fails, which aborts scheduling: no such key: nvlinkCount"],
        ),
    ],
)
def test_a_test_fails_and_says_why(expression, expect, words, tmp_path, capsys):
    status, [failures] = verified(capsys, write(tmp_path / "a.selectors.yaml", expecting(expression, expect)))
    assert status == ExitCode.NO_MATCH
    assert all(any(word in failure for failure in failures) for word in words), failures


def test_selectors_of_files_are_named_as_the_other_commands_name_them(tmp_path, capsys):
    (tmp_path / "class.yaml").write_text(
        yaml.safe_dump(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "DeviceClass",
                "metadata": {"name": "hopper"},
                "spec": {"selectors": [{"cel": {"expression": HOPPER}}]},
            }
        )
    )
    right = {"name": "a", "query": "class hopper", "expect": {"match": 8, "of": "dgx-h100"}}
    wrong = {**right, "query": "class hoper"}
    path = write(tmp_path / "a.selectors.yaml", right, wrong, files="class.yaml")
    status, failures = verified(capsys, path)
    assert status == ExitCode.NO_MATCH
    assert failures == [[], ["no file has the selector 'class hoper'; they have class hopper"]]


def test_slices_of_a_file_are_a_fleet(tmp_path, capsys):
    device = {"name": "gpu-0", "attributes": {"architecture": {"string": "Hopper"}}}
    spec = {
        "driver": "gpu.nvidia.com",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
    }
    wire = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}}
    (tmp_path / "slices.yaml").write_text(yaml.safe_dump({**wire, "spec": {**spec, "devices": [device]}}))
    expected = expecting(HOPPER, {"match": ["gpu-0"], "of": "slices.yaml"})
    assert verified(capsys, write(tmp_path / "a.selectors.yaml", expected)) == (ExitCode.OK, [[]])


def test_a_bad_file_is_refused_with_every_mistake_and_its_line(tmp_path, capsys):
    test = expecting(HOPPER, {"match": 8, "of": "dgx-h100"})
    path = write(tmp_path / "a.selectors.yaml", {**test, "query": "x"})
    status, errors = verified(capsys, path)
    assert status == ExitCode.BAD_INPUT
    assert "tests[0].query: give either a query" in errors
    _, errors = verified(capsys, write(path, test, kubernetes="1.2", gates={"X": True}))
    assert "2 mistakes" in errors
    assert "kubernetes: expected one of" in errors
    assert "gates.X: no feature gate has this name" in errors
    _, errors = verified(capsys, write(path, expecting(HOPPER, {"match": 3}, {"off": "t4"})))
    assert "expect[0].of: missing" in errors
    assert "expect[1].off: unknown field" in errors
    assert verified(capsys, write(path))[0] == ExitCode.BAD_INPUT  # without a test


def test_the_report_for_junit_has_a_case_for_each_test(tmp_path, capsys):
    write(tmp_path / "a<b.selectors.yaml", expecting(HOPPER, {"match": 8, "of": "dgx-h100"}))
    write(tmp_path / "c.selectors.yaml", expecting(HOPPER, {"match": 7, "of": "dgx-h100", "none-of": "dgx-h100"}))
    assert main.run(["cel", "verify", str(tmp_path), "-o", "junit"]) == ExitCode.NO_MATCH
    suites = ET.fromstring(capsys.readouterr().out)
    assert [(suite.get("tests"), suite.get("failures")) for suite in suites] == [("1", "0"), ("1", "1")]
    failure = suites.find(".//failure")
    assert "expected 7" in failure.get("message")
    assert len(failure.text.splitlines()) == 2


def test_what_is_recorded_passes_until_a_class_changes(tmp_path, capsys):
    shipped = ROOT / "deviceclasses" / "gpu-hopper.nvidia.com.yaml"
    (tmp_path / "class.yaml").write_text(shipped.read_text())
    target = tmp_path / "class.selectors.yaml"
    gate = ["--gate", "DRAPartitionableDevices=true"]
    assert (
        main.run(["cel", "record", str(tmp_path / "class.yaml"), DRIVER, *gate, "--write", str(target)]) == ExitCode.OK
    )
    assert main.run(["cel", "verify", str(tmp_path)]) == ExitCode.OK
    assert main.run(["cel", "lint", str(tmp_path), "--fleet", "dgx-h100"]) != ExitCode.BAD_INPUT  # the tests are beside
    (tmp_path / "class.yaml").write_text(shipped.read_text().replace("Hopper", "Ada Lovelace"))
    capsys.readouterr()
    status, failures = verified(capsys, target)
    assert status == ExitCode.NO_MATCH
    assert [bool(rows) for rows in failures] == [False, True]


def test_a_selector_that_matches_nothing_gets_no_test(capsys):
    assert main.run(["cel", "record", "false", DRIVER, "--fleet", "t4"]) == ExitCode.OK
    assert "(false) && (device" not in capsys.readouterr().out
    assert main.run(["cel", "record", "-e", "false"]) == ExitCode.OK
    captured = capsys.readouterr()
    assert "false matches nothing on 8 fleets: it gets no test" in captured.err
    assert yaml.safe_load(captured.out)["tests"] == []


def test_the_shipped_classes_match_what_is_recorded_of_them():
    assert main.run(["cel", "verify", str(ROOT / "examples" / "selectors")]) == ExitCode.OK


def test_the_hooks_for_pre_commit_run_commands_that_exist():
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    for hook in hooks:
        program, *words = shlex.split(hook["entry"])
        assert program == "dra-driver"
        assert main.run([*words[:2], "--help"]) == ExitCode.OK
