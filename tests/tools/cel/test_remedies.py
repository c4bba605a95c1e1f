"""Common mistakes in every command that takes selectors, and simulated nodes of several profiles."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from dra_driver.base.errors import ExitCode
from dra_driver.hardware.simulated.profile import profile_path
from dra_driver.tools.main import run
from dra_driver.tools.output import print_code

MISTAKE = 'memory >= quantity("40Gi")'
BETTER = 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0'


@pytest.mark.parametrize("command", ["test", "explain", "lint"])
def test_the_cel_commands_say_what_to_write(capsys, command):
    status = run(["cel", command, "-e", MISTAKE, "--fleet", "l40s", "-o", "json"])
    assert status == ExitCode.BAD_INPUT
    assert json.dumps(BETTER)[1:-1] in capsys.readouterr().out


def test_the_repl_says_what_to_write(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(MISTAKE + "\n"))
    assert run(["cel", "repl", "--fleet", "l40s"]) == ExitCode.OK
    assert BETTER in " ".join(capsys.readouterr().out.split())


def test_explain_says_what_to_write_in_a_claim(tmp_path, capsys):
    exactly = {"deviceClassName": "gpu.nvidia.com", "selectors": [{"cel": {"expression": MISTAKE}}]}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }
    path = tmp_path / "claim.json"
    path.write_text(json.dumps(claim))
    assert run(["explain", "claim/c", "-f", str(path), "--fleet", "l40s", "-o", "json"]) == ExitCode.ABORTS_SCHEDULING
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert f"write: {BETTER}" in notes


def test_a_test_without_a_match_names_the_nearest_value(capsys):
    text = 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("80Gi")) >= 0'
    assert run(["cel", "test", "-e", text, "--fleet", "dgx-h100"]) == ExitCode.NO_MATCH
    assert "nearest miss: 8 of 8 devices match but for memory: 79.6 GiB (81559Mi) < 80.0 GiB (80Gi)" in " ".join(
        capsys.readouterr().out.split()
    )


def test_nodes_of_two_profiles_with_one_name_get_different_names(capsys):
    """A shipped profile and its own file: the node has the same name in both."""
    again = str(profile_path("demo-h100"))
    assert run(["cel", "test", "-e", "true", "--fleet", "demo-h100=2", "--fleet", again, "-o", "json"]) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert found["nodes"] == 3
    assert [one["node"] for one in found["queries"][0]["nodes"]] == ["demo-node", "demo-node-2", "demo-node-3"]


def test_several_nodes_as_hardware_are_refused_because_hardware_is_one_node(capsys):
    assert run(["devices", "--hardware", "simulated:demo-h100=2"]) == ExitCode.USAGE
    assert "the hardware is that of one node" in capsys.readouterr().err


@pytest.mark.parametrize(("mig", "partitions"), [("dynamic", 158), ("static", 8)])
def test_cel_test_counts_partitions_on_demand(capsys, mig, partitions):
    text = 'device.attributes["gpu.nvidia.com"].?type.orValue("") == "mig"'
    options = ["--fleet", "demo-h100", "--kubernetes", "1.36", "--mig", mig, "-o", "json"]
    assert run(["cel", "test", "-e", text, *options]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["queries"][0]["counts"]["match"] == partitions


@pytest.mark.parametrize("written", ["memory > 40Gi", 'memory > "40Gi"', "memory > quantity(40Gi)"])
def test_an_amount_that_is_compared_as_a_number_gets_the_remedy(written, capsys):
    run(["cel", "test", "-e", f'device.capacity["gpu.nvidia.com"].{written}', "--fleet", "dgx-h100"])
    better = 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) > 0'
    assert better in capsys.readouterr().out


def test_an_expression_to_be_copied_is_not_broken_into_lines(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    name = 'device.attributes["gpu.nvidia.com"].driverVersion.isGreaterThan'
    run(["cel", "test", "-e", f'{name}(semver("570"))', "--fleet", "l40s"])
    assert f'{name}(semver("570.0.0"))\n' in capsys.readouterr().out


def test_expressions_are_broken_only_between_their_conditions():
    out, words = Console(width=30, file=io.StringIO()), 'a == "x && y" && b.startsWith(\'one || "two\') || c'
    print_code(out, words, indent=2)
    lines = out.file.getvalue().splitlines()
    assert lines == ['  a == "x && y" &&', "  b.startsWith('one || \"two') ||", "  c"]


def test_an_expression_of_several_lines_keeps_them_each_indented():
    out = Console(file=io.StringIO(), width=60)
    print_code(out, 'device.driver == "a"\n  && true\n', indent=4)
    assert out.file.getvalue() == '    device.driver == "a"\n      && true\n'
