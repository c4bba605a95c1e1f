"""The command line as a process: exit statuses, help, errors in one line, bugs with a traceback, what is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest

from dra_driver import __version__
from dra_driver.base import errors
from dra_driver.base.errors import ExitCode
from dra_driver.tools import main
from dra_driver.tools.commands import COMMANDS, LazyGroup


def process(*words, **more):
    return subprocess.run(
        [sys.executable, "-m", "dra_driver", *words], capture_output=True, text=True, timeout=120, check=False, **more
    )


def test_the_version_is_printed():
    done = process("--version")
    assert (done.returncode, done.stdout) == (0, f"dra-driver {__version__}\n")


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["version"], ["--version"]),
        (["help"], ["--help"]),
        (["help", "cel", "test"], ["cel", "test", "--help"]),
        (["help", "agent"], ["agent", "--help"]),
    ],
    ids=" ".join,
)
def test_help_and_version_are_words_as_well_as_options(words, options):
    done, expected = process(*words), process(*options)
    assert (done.returncode, done.stdout) == (0, expected.stdout)


@pytest.mark.parametrize("words", [["--help"], ["-h"]])
def test_help_lists_every_command_and_every_exit_status(words, capsys):
    assert main.run(words) == ExitCode.OK
    text = capsys.readouterr().out
    for name, entry in COMMANDS.items():
        assert (f"\n  {name} " in text) is bool(entry.heading)
    for status in ExitCode:
        assert f"  {int(status):<4}" in text


def test_without_a_command_help_is_shown_and_the_status_is_usage(capsys):
    assert main.run([]) == ExitCode.USAGE
    assert "Ask why:" in "".join(capsys.readouterr())


@pytest.mark.parametrize("words", [["nonsense"], ["devices", "--nonsense"], ["devices", "--output", "xml"]])
def test_a_wrong_command_line_has_status_2_and_no_traceback(words, capsys):
    assert main.run(words) == ExitCode.USAGE
    text = capsys.readouterr().err
    assert "Error: " in text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("words", "meant"), [(["slice"], "slices"), (["cel", "tets"], "test"), (["expalin", "pod", "x"], "explain")]
)
def test_for_a_name_that_is_nearly_a_command_the_command_is_suggested(words, meant, capsys):
    assert main.run(words) == ExitCode.USAGE
    assert f"Did you mean {meant!r}?" in capsys.readouterr().err


def test_help_groups_commands_by_purpose_and_leaves_out_that_of_a_job_of_the_chart(capsys):
    main.run(["--help"])
    text = capsys.readouterr().out
    headings = [line.strip(": ") for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Options", "Look", "Ask why", "Change", "Run"]
    assert not {"pod-security", "__complete"} & set(text.split())


@pytest.mark.parametrize("name", [name for name, entry in COMMANDS.items() if entry.command])
def test_every_command_has_help_of_its_own(name, capsys):
    assert main.run([name, "--help"]) == ExitCode.OK
    assert capsys.readouterr().out.startswith(f"Usage: dra-driver {name}")


NO_CLUSTER = [
    (["slices"], True),
    (["claims"], True),
    (["console"], True),
    (["simulate"], True),
    (["explain", "pod", "a"], True),
    (["cel", "test", "-e", "true", "--cluster"], True),
    (["in-use"], False),
    (["usage"], False),
]


@pytest.mark.parametrize(("words", "simulates"), NO_CLUSTER, ids=[" ".join(words) for words, _ in NO_CLUSTER])
def test_without_a_kubeconfig_the_error_says_what_was_looked_for_and_what_needs_none(
    words, simulates, capsys, monkeypatch, tmp_path
):
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main.run(words) == ExitCode.ENVIRONMENT
    text = capsys.readouterr().err
    assert text.startswith("dra-driver: no kubeconfig was found")
    assert "--kubeconfig" in text
    assert ("--fleet dgx-h100" in text) is simulates


@pytest.mark.parametrize("words", [["health", "show"], ["remediation", "show"], ["release"]])
def test_a_command_about_this_nodes_agent_ends_with_5_where_there_is_none(words, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("KUBELET_PLUGINS_DIRECTORY_PATH", str(tmp_path))
    assert main.run(words) == ExitCode.ENVIRONMENT
    assert "[node.no-agent]" in capsys.readouterr().err


FAULTS = [
    (errors.UsageError("x", "wrong flag", hint="try this"), 2),
    (errors.InputError("x", "wrong file"), 3),
    (errors.SelectorError("x", "wrong selector"), 3),
    (errors.NodeError("x", "no folder"), 5),
    (errors.ApiError("x", "no server"), 5),
    (errors.HardwareError("x", "no answer"), 5),
]


@pytest.mark.parametrize(("fault", "status"), FAULTS, ids=str)
def test_a_driver_error_is_one_line_with_its_code_and_a_status_of_its_own(fault, status, monkeypatch, capsys):
    def fail():
        raise fault

    monkeypatch.setattr(LazyGroup, "get_command", lambda *_: click.Command("x", callback=fail))
    assert main.run(["x"]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0] == f"dra-driver: {fault.message} [{fault.code}]"
    assert err.splitlines()[1:] == ([f"  {fault.hint}"] if fault.hint else [])


def test_a_bug_has_status_70_with_a_traceback_and_a_request_to_report_it(monkeypatch, capsys):
    def fail():
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(LazyGroup, "get_command", lambda *_: click.Command("x", callback=fail))
    assert main.run(["x"]) == ExitCode.BUG
    text = capsys.readouterr().err
    assert "ZeroDivisionError: oh" in text
    assert "this is a bug" in text


def test_an_interrupt_has_the_status_that_shells_expect(monkeypatch, capsys):
    def fail():
        raise KeyboardInterrupt

    monkeypatch.setattr(LazyGroup, "get_command", lambda *_: click.Command("x", callback=fail))
    assert main.run(["x"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_command_is_imported_only_when_it_is_called():
    code = (
        "import sys; from dra_driver.tools import main; main.run(['--help']);"
        "heavy = {'rich', 'yaml', 'grpc', 'dra_driver.tools.demo', 'dra_driver.tools.fleet.devices',"
        " 'dra_driver.simulator'};"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr.strip() == "[]"


def test_a_terminal_without_our_characters_is_no_error():
    words = ("devices", "--hardware", "simulated:demo-h100")
    done = process(*words, env={**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "60"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()


def test_a_command_says_once_what_is_missing_and_logs_nothing_to_standard_error(tmp_path):
    roots = [f for name in ("sysfs", "proc", "dev") for f in (f"--{name}-root", str(tmp_path))]
    for folder in ("driver/nvidia", "bus"):
        (tmp_path / folder).mkdir(parents=True)
    done = process("devices", "--hardware", "nvidia", *roots)
    assert "left out of containers" in done.stdout
    assert done.stderr == ""


GO_AWAY = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from dra_driver.__main__ import main
sys.argv = ["dra-driver", "--version"]
main()
import grpc
for number in range(20):
    began, end = threading.Event(), threading.Event()
    def wait(request, context):
        began.set()
        end.wait(60)
        return b""
    server = grpc.server(ThreadPoolExecutor(1))
    handler = grpc.unary_unary_rpc_method_handler(wait)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.B", {"C": handler}),))
    server.add_insecure_port(f"unix:{number}.sock")
    server.start()
    call = grpc.insecure_channel(f"unix:{number}.sock").unary_unary("/a.B/C").future(b"", timeout=60)
    began.wait(60)
    server.stop(0)
    call.exception()
    end.set()
"""


def test_grpc_writes_nothing_to_standard_error(tmp_path):
    command = [sys.executable, "-c", GO_AWAY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_table_written_to_a_closed_pipe_is_no_error():
    devices = f"{sys.executable} -m dra_driver devices --hardware simulated:demo-h100"
    command = devices + " | true; exit ${PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_yaml_written_to_a_pipe_that_is_closed_early_is_no_error():
    devices = f"{sys.executable} -m dra_driver devices --hardware simulated:demo-h100 -o yaml"
    command = devices + " | head -1; exit ${PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["stdin", "stdout", "stderr"])
def test_a_stream_that_the_shell_has_closed_counts_as_empty(name, monkeypatch):
    monkeypatch.setattr(sys, name, None)
    assert main.run(["slices", "--fleet", "dgx-h100"]) == ExitCode.OK
    assert main.run(["explain", "-f", "-", "--fleet", "dgx-h100"]) == ExitCode.BAD_INPUT
