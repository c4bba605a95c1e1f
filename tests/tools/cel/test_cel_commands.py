"""What `dra-driver cel` prints and with which exit status: test, explain, lint, batch, repl."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from dra_driver.base.errors import ExitCode
from dra_driver.selectors.advice.completion import Completions
from dra_driver.selectors.check.declarations import declare
from dra_driver.selectors.evaluate.program import prepare_device
from dra_driver.tools import main
from dra_driver.tools.cel.linting import ExpressionChange, with_new_expressions

ROOT = Path(__file__).parents[3]
A = 'device.attributes["gpu.nvidia.com"]'
GUARD = 'device.driver == "gpu.nvidia.com"'
DEMO = ["--fleet", "demo-h100"]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in ("HARDWARE", "KUBECONFIG", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "120")


def ran(capsys, *argv):
    status = main.run(["cel", *argv])
    return status, capsys.readouterr().out


@pytest.mark.parametrize(
    ("expressions", "status"),
    [
        ([GUARD], ExitCode.OK),
        (["false"], ExitCode.NO_MATCH),
        (["1 +"], ExitCode.BAD_INPUT),
        (["device.driver"], ExitCode.BAD_INPUT),
        ([f'{A}.type == "gpu"'], ExitCode.ABORTS_SCHEDULING),
        ([f'{A}.nothing == "gpu"'], ExitCode.ABORTS_SCHEDULING),
        ([GUARD, f'{A}.type == "gpu"'], ExitCode.OK),
        ([GUARD, "1 +"], ExitCode.BAD_INPUT),
    ],
)
@pytest.mark.parametrize("command", ["test", "explain"])
@pytest.mark.parametrize("form", ["table", "json", "yaml"])
def test_exit_statuses_are_the_documented_ones(command, expressions, status, form, capsys):
    options = [part for one in expressions for part in ("-e", one)]
    assert ran(capsys, command, *options, *DEMO, "-o", form)[0] == status


def test_counts_are_given_for_each_node(capsys):
    status, text = ran(capsys, "test", "-e", f'{GUARD} && {A}.type == "gpu"', *DEMO, "--fleet", "l40s")
    assert status == ExitCode.OK
    assert re.search(r"demo-node +6 +16 +0", text)
    assert re.search(r"l40s-1 +4 +0 +0", text)
    assert "10 match, 16 do not match, of 26 devices" in text


def test_every_device_can_have_a_row(capsys):
    _, text = ran(capsys, "test", "-e", f'{A}.type == "gpu"', *DEMO, "--devices")
    assert len(re.findall(r" aborts ", text)) >= 8
    assert len(re.findall(r"demo-node +\S+ +(?:dra\.net|gpu)|demo-node", text)) >= 22


@pytest.mark.parametrize("width", ["80", "140"])
@pytest.mark.parametrize("command", ["test", "explain", "lint"])
def test_nothing_is_wider_than_the_terminal(command, width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", width)
    expression = f'{GUARD} && {A}.type == "gpu" && {A}.productName.lowerAscii().startsWith("nvidia h100") && {A}.x > 1'
    ran(capsys, command, "-e", expression, *DEMO)
    _, text = ran(capsys, command, "-e", expression, *DEMO)
    assert max(map(len, text.splitlines())) <= int(width)


def test_devices_that_abort_have_a_colour_of_their_own(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    _, text = ran(capsys, "test", "-e", f'{A}.type == "gpu"', *DEMO)
    assert "\x1b[1;35m" in text
    monkeypatch.delenv("FORCE_COLOR")
    monkeypatch.setenv("NO_COLOR", "1")
    _, text = ran(capsys, "test", "-e", f'{A}.type == "gpu"', *DEMO)
    assert "\x1b" not in text


def test_an_expression_beyond_the_cost_limit_is_reported_and_refused_only_as_a_new_one(capsys):
    dear = f'int({A}.productName.split(" ")[2].replace("GB", "")) >= 80'
    _, text = ran(capsys, "test", "-e", dear, "--fleet", "dgx-a100")
    assert "exceeds the limit of 1,000,000" in text
    assert ran(capsys, "test", "-e", f"{GUARD} || {dear}", "--fleet", "dgx-a100")[0] == ExitCode.OK
    new = ["--environment", "new"]
    assert ran(capsys, "test", "-e", f"{GUARD} || {dear}", "--fleet", "dgx-a100", *new)[0] == ExitCode.BAD_INPUT


def test_verdicts_of_another_engine_are_marked(capsys):
    _, text = ran(capsys, "test", "-e", GUARD, *DEMO, "--engine", "celpy")
    assert "portable CEL, not the scheduler's verdict" in text
    found = json.loads(ran(capsys, "test", "-e", GUARD, *DEMO, "--engine", "celpy", "-o", "json")[1])
    assert found["caveat"]
    assert found["queries"][0]["counts"]["match"] == 14


@pytest.mark.parametrize("version", ["1.34", "1.37"])
def test_verdicts_of_every_version_rest_on_recorded_ones(version, capsys):
    assert "derived" not in ran(capsys, "test", "-e", GUARD, *DEMO, "--kubernetes", version)[1]


def test_an_explanation_has_every_part_and_marks_the_deciding_one(capsys):
    status, text = ran(
        capsys, "explain", "-e", f'{GUARD} && {A}.profile == "9g"', *DEMO, "--device", "nic-0000-18-00-0"
    )
    assert status == ExitCode.NO_MATCH
    assert f"* {GUARD} = false" in text
    assert f'{A}.profile == "9g" = error: no such key: profile' in text


def test_the_nearest_miss_is_a_sentence(capsys):
    memory = 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("80Gi")) >= 0'
    _, text = ran(capsys, "explain", "-e", GUARD, "-e", memory, "--fleet", "dgx-h100")
    assert "8 of 8 devices match but for memory: 79.6 GiB (81559Mi) < 80.0 GiB (80Gi)" in text


def test_for_an_unknown_name_the_nearest_is_suggested(capsys):
    assert "did you mean gpu.nvidia.com/productName" in ran(capsys, "explain", "-e", f'{A}.prodctName == ""', *DEMO)[1]
    assert "did you mean attributes?" in ran(capsys, "explain", "-e", 'device.atributes["a"].b', *DEMO)[1]


def test_a_position_before_the_text_is_printed_as_the_api_server_gives_it(capsys):
    assert "<input>:-1:0" in ran(capsys, "test", "-e", "(" * 20_000, *DEMO)[1]


def test_every_example_and_class_compiles(capsys):
    status, text = ran(capsys, "test", str(ROOT / "examples/resourceclaims"), str(ROOT / "deviceclasses"), *DEMO)
    assert "does not compile" not in text
    assert "refuses" not in text
    assert status == ExitCode.NO_MATCH  # one example shows a claim that can't be met


def test_lint_fixes_expressions_in_files_and_keeps_the_rest(tmp_path, capsys):
    before = (ROOT / "deviceclasses/mig.nvidia.com.yaml").read_text()
    guarded = f'{GUARD} && {A}.type == "mig"'
    assert guarded in before
    path = tmp_path / "class.yaml"
    path.write_text(before.replace(guarded, f'{A}.type == "mig"  # why'))
    assert ran(capsys, "lint", str(path), *DEMO)[0] == ExitCode.NO_MATCH
    assert ran(capsys, "lint", "--fix", str(path), *DEMO)[0] == ExitCode.OK
    assert path.read_text() == before.replace(guarded, f"{guarded}  # why")
    assert ran(capsys, "lint", str(path), *DEMO)[0] == ExitCode.OK


def test_lint_prints_the_better_expression_for_one_on_the_command_line(capsys):
    status, text = ran(capsys, "lint", "--fix", "-e", f'{A}.type == "gpu"', *DEMO)
    assert status == ExitCode.NO_MATCH
    assert f'has({A}.type) && {A}.type == "gpu"' in text
    assert ran(capsys, "lint", "-e", f'{A}.type == "gpu"', *DEMO, "--disable", "unguarded-attribute")[0] == ExitCode.OK
    assert ran(capsys, "lint", "-e", "1 +")[0] == ExitCode.BAD_INPUT


@pytest.mark.parametrize(
    "written",
    [
        "a == 1",
        "'a == \"x\"'",
        '"a == 1"',
        "|-\n    a == 1",
        "|\n    a == 1\n    && b",
        ">-\n    a == 1\n    && b",
        "a == 1 # why",
    ],
)
@pytest.mark.parametrize("new", ["b == 2", 'b["x: y"] == "#"', "b\n&& c", "!b", '"x" in b', "'x' in b", "b ? c : d"])
def test_a_replaced_expression_reads_back_and_nothing_else_changes(written, new):
    text = f"x: 1 # one\ny:\n  e: {written}\nz: [2]\n---\nw: é\n"
    made = with_new_expressions(text, "here", [ExpressionChange(0, ("y", "e"), new)])
    if written.startswith("|\n") and made is None:
        return
    assert made is not None
    assert next(yaml.safe_load_all(made))["y"]["e"] == new
    assert made.startswith("x: 1 # one\n")
    assert made.endswith("z: [2]\n---\nw: é\n")


def test_a_batch_is_answered_line_by_line_also_beside_wrong_lines(tmp_path, capsys):
    path = tmp_path / "batch.jsonl"
    good = {"id": "a", "expression": 'device.driver == "d"'}
    lines = [
        json.dumps({"driver": "d", "devices": [{"name": "x"}], "kubernetes": "1.36"}).encode(),
        json.dumps(good).encode(),
        b"",
        b"nope",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b'{"id": 7, "expression": 3}',
        b'{"id": 8, "expression": "true", "kubernetes": "1.0"}',
        b'{"id": 9, "expression": "true", "devices": [3]}',
        b'{"id": 10, "expression": "\\ud800"}',
        b'{"id": ' + b"9" * 5000 + b', "expression": "true"}',
        json.dumps({"id": "long", "expression": "(" * 20_000}).encode(),
        json.dumps({**good, "id": "z", "driver": "other"}).encode(),
    ]
    path.write_bytes(b"\n".join(lines))
    status, text = ran(capsys, "batch", str(path))
    answers = [json.loads(line) for line in text.splitlines()]
    assert status == ExitCode.BAD_INPUT
    assert len(answers) == len(lines) - 2
    assert answers[0]["results"] == [{"match": True}]
    assert answers[-1]["results"] == [{"match": False}]
    assert [one.get("id") for one in answers if "error" in one][-3:-1] == [8, 9]
    assert not any("bug" in one.get("error", "") for one in answers)


@pytest.mark.parametrize(
    "first", [{}, {"kind": "ResourceClaim", "spec": {}}, {"id": 1, "expresion": "true", "driver": "d"}]
)
def test_a_first_line_that_is_neither_an_expression_nor_defaults_is_a_fault(tmp_path, capsys, first):
    path = tmp_path / "batch.jsonl"
    path.write_text(f"{json.dumps(first)}\n")
    status, text = ran(capsys, "batch", str(path))
    assert status == ExitCode.BAD_INPUT
    assert json.loads(text)["error"] == "expression must be a string"


@pytest.mark.parametrize("kubernetes", ["1.37", "1.37.1", "v1.37.2-gke.100"])
def test_a_batch_takes_patch_versions(tmp_path, capsys, kubernetes):
    path = tmp_path / "batch.jsonl"
    line = {"id": 1, "expression": "device.attributes.?a.?b.orValue([]).includes(1)", "kubernetes": kubernetes}
    path.write_text(json.dumps(line))
    status, text = ran(capsys, "batch", str(path))
    assert (status, json.loads(text)["type"]) == (ExitCode.OK, "bool")


@pytest.mark.parametrize(
    ("device", "text"),
    [
        ({"attribute": {}}, "devices[0].attribute is not a field of the API (did you mean attributes?)"),
        (
            {"capacity": {"memory": {"values": "1Gi"}}},
            "devices[0].capacity.memory.values is not a field of the API (did you mean value?)",
        ),
        (
            {"attributes": {"a": {"float": 1}}},
            (
                "devices[0].attributes.a.float is not a field of the API"
                " (known here: bool, bools, int, ints, string, strings, version, versions)"
            ),
        ),
    ],
)
def test_a_batch_refuses_a_misspelt_field_of_a_device(tmp_path, capsys, device, text):
    path = tmp_path / "batch.jsonl"
    of_a_line = {"id": 1, "expression": "true", "devices": [{"name": "x", **device}]}
    path.write_text(json.dumps(of_a_line))
    assert ran(capsys, "batch", str(path))[0] == ExitCode.BAD_INPUT
    lines = [{"devices": [{"name": "x", **device}]}, {"id": 1, "expression": "true"}]
    path.write_text("\n".join(map(json.dumps, lines)))
    status, answer = ran(capsys, "batch", str(path))
    assert (status, json.loads(answer)["error"]) == (ExitCode.BAD_INPUT, text)


def test_a_batch_is_read_from_a_pipe(monkeypatch, capsys):
    line = b'{"id": 1, "expression": "true"}\n'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(line * 3)))
    status, text = ran(capsys, "batch", "-")
    assert status == ExitCode.OK
    assert len(text.splitlines()) == 3


@pytest.mark.parametrize("version", ["1.35.8", "v1.36.1", "1.37+"])
def test_a_patch_version_has_the_rules_of_its_minor(version, capsys):
    status, text = ran(capsys, "test", "-e", "true", "--fleet", "t4", "--kubernetes", version)
    assert status == ExitCode.OK
    assert f"rules of Kubernetes {version.removeprefix('v')[:4]}" in text
    assert ran(capsys, "test", "-e", "true", "--fleet", "t4", "--kubernetes", "1.33")[0] == ExitCode.USAGE


def completions(before):
    view = prepare_device(
        {"attributes": {"model": {"string": "a"}, "minor": {"int": 1}}, "capacity": {"memory": {"value": "1Gi"}}},
        "d.com",
    )
    return [one.text for one in Completions([view], declare("1.35", None, "stored")).complete(before)]


@pytest.mark.parametrize(
    ("before", "candidates"),
    [
        ("dev", ["device"]),
        ("device.", ["allowMultipleAllocations", "attributes", "capacity", "driver"]),
        ('device.attributes["', ['d.com"]']),
        ('device.capacity["d.com"].', ["memory"]),
        ('true && device.attributes["d.com"].m', ["minor", "model"]),
        ('device.attributes["d.com"].?mo', ["model"]),
        ('device.attributes["d.com"]["mo', ['model"]']),
        ('device.attributes["d.com"].model.lowerA', ["lowerAscii("]),
        ("semv", ["semver("]),
        ("", []),
    ],
)
def test_names_are_completed_from_the_devices(before, candidates):
    assert [one for one in completions(before) if one in candidates] == candidates
    if before:
        assert completions(before)[: len(candidates)] == candidates


@pytest.mark.parametrize(
    ("before", "has", "lacks"),
    [
        ('device.attributes["d.com"].model.', "startsWith(", "compareTo("),
        ('device.attributes["d.com"]["model"].', "startsWith(", "compareTo("),
        ('device.attributes["d.com"].minor.', None, "startsWith("),
        ('device.capacity["d.com"].memory.', "compareTo(", "startsWith("),
        ('true && (device.capacity["d.com"].memory).', "compareTo(", "startsWith("),
        ('quantity("1Gi").add(quantity("2Gi")).', "compareTo(", "startsWith("),
        ('device.attributes["d.com"].?model.', "orValue(", "startsWith("),
        ("[1, 2].", "all(", "startsWith("),
        ("x.", "startsWith(", None),  # a type that is not known
        (").", "startsWith(", None),
    ],
)
def test_only_methods_of_the_operands_type_are_offered(before, has, lacks):
    found = completions(before)
    assert has is None or has in found
    assert lacks not in found


def test_a_candidate_says_its_type_its_unit_and_its_values_or_its_signature():
    wire = {"attributes": {"smClockMax": {"int": 1980}}, "capacity": {"memory": {"value": "80Gi"}}}
    known = Completions([prepare_device(wire, "gpu.nvidia.com")], declare("1.35", None, "stored"))

    def meaning(before):
        return known.complete(before)[0].meaning

    assert meaning('device.attributes["gpu.nvidia.com"].sm') == "int (MHz): 1980"
    assert meaning('device.capacity["gpu.nvidia.com"].me') == "kubernetes.Quantity (bytes): 80Gi"
    assert meaning('device.capacity["gpu.nvidia.com"].memory.compareT') == "Quantity.(Quantity): int"
    assert meaning("semv") == "(string): Semver or (string, bool): Semver"


def test_the_repl_answers_lines_from_a_pipe():
    text = f"{A}.driverVersion\n{GUARD}\n:names\nfoo(\n:quit\nnever\n"
    done = subprocess.run(
        [sys.executable, "-m", "dra_driver", "cel", "repl", "--fleet", "l40s"],
        input=text,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=120,
        check=False,
    )
    assert done.returncode == ExitCode.OK, done.stderr
    assert "(kubernetes.Semver) on 4 devices" in done.stdout
    assert "true  (bool) on 4 devices" in done.stdout
    assert "productName  string" in done.stdout
    assert "Syntax error" in done.stdout
    assert "never" not in done.stdout


def test_the_repl_on_a_terminal_completes_names_and_shows_the_type():
    terminal, inner = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "dra_driver", "cel", "repl", "--fleet", "l40s"],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"},
        start_new_session=True,
    )
    os.close(inner)
    seen = b""

    def listen():
        nonlocal seen
        if select.select([terminal], [], [], 0.1)[0]:
            with contextlib.suppress(OSError):  # what Linux reports when no process holds the other end
                read = os.read(terminal, 65536)
                if b"\x1b[6n" in read:
                    os.write(terminal, b"\x1b[1;1R")
                seen += read

    def wait_for(wanted):
        deadline = time.monotonic() + 60
        while wanted not in seen:
            assert time.monotonic() < deadline, seen
            listen()

    try:
        wait_for(b"Tab completes")
        os.write(terminal, b'device.attributes["gpu.nv\t')
        wait_for(b"map(string")
        os.write(terminal, b'.ty\t == "gpu"\r')
        wait_for(b"on 4 devices")
        seen = seen.partition(b"on 4 devices")[2]
        wait_for(b"Tab completes")  # the next prompt is up
        os.write(terminal, b"\x04")
        deadline = time.monotonic() + 60
        while child.poll() is None:
            assert time.monotonic() < deadline, seen
            listen()
        assert child.returncode == ExitCode.OK
    finally:
        child.kill()
        child.wait()
        os.close(terminal)
