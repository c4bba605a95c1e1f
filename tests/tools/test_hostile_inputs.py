"""No input leads to a traceback: a short run of `python -m tests.tools.support.hostile`, and tests with processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from dra_driver.base.errors import ExitCode
from dra_driver.tools.main import run
from dra_driver.tools.output import yaml_text
from tests.support.waiting import unhindered
from tests.tools.support.hostile.files import hostile_files
from tests.tools.support.hostile.fuzz import Found, fuzz
from tests.tools.support.hostile.node_files import ROOT
from tests.tools.support.hostile.objects import OBJECTS

PROGRAM = [sys.executable, "-m", "dra_driver"]


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", "")
    monkeypatch.chdir(tmp_path)


def test_an_argument_longer_than_a_file_name_is_bad_input(capsys):
    assert run(["cel", "test", "x" * 300, "--fleet", "l40s"]) == ExitCode.BAD_INPUT
    assert "can't be read" in capsys.readouterr().err
    assert run(["cel", "test", "-e", "true", "--fleet", "x" * 300]) == ExitCode.BAD_INPUT


def test_a_batch_line_of_any_depth_is_answered_like_any_wrong_line(tmp_path, capsys):
    path = tmp_path / "batch.jsonl"
    path.write_text("[" * 100_000 + "]" * 100_000 + "\n{}\n")
    assert run(["simulate", "--batch", str(path)]) == ExitCode.BAD_INPUT
    assert ["error" in json.loads(line) for line in capsys.readouterr().out.splitlines()] == [True, True]


@pytest.mark.parametrize("name", ["laughs.yaml", "laughs-merged.yaml", "loop.yaml", "deep.yaml", "deep-item.json"])
def test_small_files_that_expand_to_huge_or_endless_objects_are_refused(name, tmp_path, capsys):
    hostile_files(tmp_path)
    assert run(["slices", "-f", str(tmp_path / name)]) == ExitCode.BAD_INPUT
    assert "[input.not-yaml]" in capsys.readouterr().err


def test_the_fault_of_a_wrong_field_names_the_field(tmp_path, capsys):
    one = json.loads(json.dumps(OBJECTS[0]))
    one["spec"]["devices"][1]["name"] = 7
    (tmp_path / "s.json").write_text(json.dumps(one))
    assert run(["slices", "-f", str(tmp_path / "s.json")]) == ExitCode.BAD_INPUT
    assert "ResourceSlice s: spec.devices[1].name is not a text but int [input.object]" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["simulate", "-f"], ["claims", "-f"], ["explain", "pod", "a", "-f"]])
def test_a_pod_without_a_spec_is_bad_input(tmp_path, capsys, command):
    (tmp_path / "pod.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: null\n")
    assert run([*command, str(tmp_path / "pod.yaml")]) == ExitCode.BAD_INPUT
    assert "Pod a: spec is missing" in capsys.readouterr().err


@pytest.mark.parametrize("spec", ["", "spec: null\n"], ids=["no spec", "a null spec"])
def test_a_claim_without_a_spec_asks_for_nothing_as_on_the_api_server(tmp_path, capsys, spec):
    (tmp_path / "claim.yaml").write_text(
        f"apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {{name: a}}\n{spec}"
    )
    (tmp_path / "none.yaml").write_text("apiVersion: v1\nkind: List\nitems: []\n")
    words = ["explain", "-f", str(tmp_path / "claim.yaml")]
    assert run([*words, "--fleet", "t4"]) == ExitCode.OK
    assert run([*words, "--slices", str(tmp_path / "none.yaml")]) == ExitCode.NO_MATCH, capsys.readouterr().err
    assert "there are no nodes" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command", [["claims", "-f"], ["cel", "test", "--fleet", "t4"], ["explain", "--fleet", "t4", "-f"]]
)
def test_control_characters_of_an_object_do_not_reach_the_terminal(tmp_path, capsys, command):
    claim = json.loads(json.dumps(OBJECTS[2]))
    claim["metadata"]["name"] = "a\x1b[2Jb\x9bc"
    claim["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": "'\x1b]0;x\x07' == 'y'"}}]
    (tmp_path / "claim.json").write_text(json.dumps(claim))
    run([*command, str(tmp_path / "claim.json")])
    shown = "".join(capsys.readouterr())
    assert "a\ufffd[2Jb\ufffdc" in shown
    assert not set("\x1b\x07\x9b") & set(shown)


# Of a terminal (C0, C1), of the direction and the lines of text; half of a pair.
CONTROLS = "\x1b]0;x\x07\x7f\x85\x9b\u061c\u200e\u2028\u202e\u2066\u2069\ud800"


@pytest.mark.parametrize("form", ["tree", "wide", "json", "yaml"])
def test_no_form_of_output_gives_orders_to_a_terminal_and_programs_get_the_text_unchanged(tmp_path, capsys, form):
    made = json.loads(json.dumps(OBJECTS[0]))
    made["spec"]["devices"][0]["name"] = f"a{CONTROLS}b"
    made["spec"]["nodeName"] = f"node{CONTROLS}"
    (tmp_path / "slices.json").write_text(json.dumps(made))
    assert run(["slices", "-f", str(tmp_path / "slices.json"), "-o", form]) == ExitCode.OK
    shown = "".join(capsys.readouterr())
    assert not set(CONTROLS.replace("]0;x", "")) & set(shown)
    if form in {"json", "yaml"}:
        document = json.loads(shown) if form == "json" else yaml.safe_load(shown)
        assert f"node{CONTROLS}" in str(document) or repr(f"node{CONTROLS}")[1:-1] in str(document)


def test_yaml_keeps_any_text(capsys):
    content = {f"key {one}": [one, f"{one} line\nline: # {one}"] for one in CONTROLS[:-1]} | {"plain": "täst 日本 - x"}
    text = yaml_text(content)
    assert yaml.safe_load(text) == content
    assert "plain: täst 日本 - x" in text
    assert not set(CONTROLS.replace("]0;x", "")) & set(text)


def test_control_characters_in_an_error_do_not_reach_the_terminal(tmp_path, capsys):
    (tmp_path / "pod.json").write_text(
        json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a\x1b[2Jb"}})
    )
    assert run(["claims", "-f", str(tmp_path / "pod.json")]) == ExitCode.BAD_INPUT
    assert "Pod a\ufffd[2Jb: spec is missing" in capsys.readouterr().err


def test_a_version_that_is_a_list_and_a_class_without_an_expression_are_bad_input(tmp_path, capsys):
    one, other = json.loads(json.dumps(OBJECTS[0])), json.loads(json.dumps(OBJECTS[5]))
    one["spec"]["devices"][0]["attributes"]["v"]["version"] = [[]]
    (tmp_path / "s.json").write_text(json.dumps(one))
    assert run(["cel", "test", "-e", "true", str(tmp_path / "s.json")]) == ExitCode.BAD_INPUT
    assert "spec.devices[0].attributes.v.version is not a text but list" in capsys.readouterr().err
    other["spec"]["selectors"] = [{}]
    (tmp_path / "c.json").write_text(json.dumps(other))
    assert run(["slices", "-f", str(tmp_path / "c.json")]) == ExitCode.BAD_INPUT
    assert "spec.selectors[0].cel is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "value", "command"),
    [
        ((0, "spec", "devices", 0, "attributes", "productName"), {}, ["slices", "-f"]),
        ((0, "spec", "sharedCounters", 0, "counters", "memory"), {}, ["slices", "-f"]),
        ((0, "apiVersion"), [[]], ["slices", "-f"]),
        ((0, "apiVersion"), {}, ["cel", "test", "-e", "true"]),
        ((2, "spec", "devices", "requests", 0, "exactly", "selectors"), [{}], ["explain", "claim", "c", "-f"]),
    ],
    ids=["an empty attribute", "an empty counter", "a list as version", "a mapping as version", "no expression"],
)
def test_objects_that_lack_a_value_cause_no_traceback(place, value, command, tmp_path, capsys):
    objects = json.loads(json.dumps(OBJECTS))
    at = objects
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = value
    (tmp_path / "all.json").write_text(json.dumps({"kind": "List", "items": objects}))
    assert run([*command, str(tmp_path / "all.json")]) != ExitCode.BUG
    assert "Traceback" not in capsys.readouterr().err


def test_a_sample_of_hostile_objects_and_arguments_causes_no_traceback():
    found = Found()
    fuzz(found, 50, 7, share=0.004)
    assert not found.bugs
    assert sum(found.statuses.values()) > 50


def process(*arguments, **options):
    return subprocess.run(
        [*PROGRAM, *arguments], cwd=options.pop("cwd", ROOT), capture_output=True, timeout=120, check=False, **options
    )


COMMANDS = (["slices", "--fleet", "l40s"], ["cel", "test", "-e", "true", "--fleet", "l40s"])


def test_a_terminal_with_ascii_only_is_no_error():
    kept = {key: value for key, value in os.environ.items() if key not in {"HOME", "KUBECONFIG"}}
    for command in COMMANDS:
        done = process(*command, env={**kept, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"})
        assert done.returncode == ExitCode.OK, done.stderr


@pytest.mark.parametrize("environment", [{"COLUMNS": "1", "LINES": "0"}, {"COLUMNS": "x"}], ids=str)
def test_odd_sizes_of_a_terminal_are_no_error(environment, monkeypatch, capsys):
    for name in ("HOME", "KUBECONFIG"):
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for command in COMMANDS:
        assert run(command) == ExitCode.OK, capsys.readouterr().err


@pytest.mark.parametrize("words", [["slices", "--fleet", "l40s", "-o", "json"], ["slices", "--fleet", "l40s"], ["-h"]])
def test_a_closed_pipe_is_neither_a_finding_nor_a_traceback(words):
    with subprocess.Popen([*PROGRAM, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as done:
        done.stdout.close()
        said = done.stderr.read()
    assert b"Traceback" not in said
    assert done.returncode == ExitCode.OK


@pytest.mark.parametrize("words", [["slices", "--fleet", "l40s", "-o", "json"], ["slices", "--fleet", "l40s"], ["-h"]])
def test_a_full_disk_is_an_error_that_names_the_output(words):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*PROGRAM, *words], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, timeout=120, check=False
        )
    assert b"the output can't be written: No space left on device [input.unwritable]" in done.stderr
    assert b"Traceback" not in done.stderr
    assert done.returncode == ExitCode.BAD_INPUT


def test_a_fifo_is_opened_once_so_that_its_writer_loses_nothing(tmp_path, capsys, monkeypatch):
    fifo, opened, really_open = tmp_path / "fifo.json", [], Path.open
    os.mkfifo(fifo)
    monkeypatch.setattr(Path, "open", lambda path, *how, **more: opened.append(path) or really_open(path, *how, **more))
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(subprocess.run, ["tee", str(fifo)], input=json.dumps(OBJECTS[0]).encode(), check=True)
        assert unhindered(lambda: run(["slices", "-f", str(fifo)])) == ExitCode.OK
        written.result(60)
    assert opened.count(fifo) == 1
    assert "1 GPU" in capsys.readouterr().out


def test_an_interrupt_while_a_fifo_is_silent_ends_the_command(tmp_path):
    os.mkfifo(tmp_path / "fifo.yaml")
    with subprocess.Popen(
        [*PROGRAM, "slices", "-f", str(tmp_path / "fifo.yaml")], cwd=ROOT, stderr=subprocess.PIPE
    ) as done:
        with (tmp_path / "fifo.yaml").open("wb"):  # returns once the command reads
            done.send_signal(signal.SIGINT)
        assert b"Traceback" not in done.stderr.read()
