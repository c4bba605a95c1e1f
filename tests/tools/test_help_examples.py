"""The first example of each command's --help works when it is pasted into a shell."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from dra_driver.__main__ import main
from dra_driver.base.errors import ExitCode
from dra_driver.hardware.nvidia.published import NvidiaGpu
from dra_driver.node.health.cases import RemediationAction, RemediationCase, RemediationJournal, Stage
from dra_driver.node.health.faults import FaultKey, KnownGpus
from dra_driver.node.health.stored_health import GPUS, HealthStore
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.tools.commands import COMMANDS, cli

ROOT = Path(__file__).resolve().parents[2]
SERVERS = {"webhook", "console", "console-server"}  # they run until they are ended
FOR_JOBS = {name for name, entry in COMMANDS.items() if not entry.heading}
NEEDS_SHELL = re.compile(r"[|&;<>$`*?~]")
TRIED_ELSEWHERE = {"demo", "usage"}  # tests/tools/test_demo.py; tests/tools/views/test_usage.py, with a Prometheus


def commands(command: click.Command, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], click.Command]:
    if not isinstance(command, click.Group):
        return {path: command}
    context = click.Context(command)
    found = {}
    for name in command.list_commands(context):
        found |= commands(command.get_command(context, name), (*path, name))
    return found


ALL = {path: one for path, one in commands(cli).items() if path[0] not in SERVERS | FOR_JOBS}


def first_example(path: tuple[str, ...]) -> str:
    """Return the first line of the help that runs the command, without the remark after it."""
    words = f"dra-driver {' '.join(path)}"
    lines = (ALL[path].help or "").splitlines()
    number = next((n for n, line in enumerate(lines) if words in line), None)
    assert number is not None, f"{words} --help has no example"
    text = lines[number].strip()
    while text.endswith("\\"):
        number += 1
        text = text[:-1] + lines[number].strip()
    return text.split("   ")[0]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory):
    api = EmbeddedApi()
    api.start()
    folder = tmp_path_factory.mktemp("home")
    program = folder / "dra-driver"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m dra_driver "$@"\n')
    program.chmod(0o755)
    known = KnownGpus(dict)
    known.restore([NvidiaGpu("GPU-0", "0000:1b:00.0", 0, 1)])
    data = folder / "plugins" / "gpu.nvidia.com"
    data.mkdir(parents=True)
    HealthStore(data).write({GPUS: known.to_wire()})
    stage, action = Stage.ESCALATED, RemediationAction.RESET
    case = RemediationCase("0000:1b:00.0", "GPU-0", FaultKey.NEEDS_RESET, "gpu-reset", 0.0, 0.0, stage, 0.0, action)
    RemediationJournal(data).write(case)
    yield os.environ | {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "KUBECONFIG": str(api.write_kubeconfig(folder / "kubeconfig")),
        "KUBELET_PLUGINS_DIRECTORY_PATH": str(data.parent),
        "HOME": str(folder),
    }
    api.stop()


@pytest.mark.parametrize("path", list(ALL), ids=" ".join)
def test_the_first_example_works_as_pasted(
    path: tuple[str, ...],
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    example = first_example(path)
    if path[0] in TRIED_ELSEWHERE:
        return
    words = shlex.split(example)
    if NEEDS_SHELL.search(example):
        status, output, errors = in_shell(example, environment)
    else:  # in this process, which has imported the commands already
        for name, value in {"GRPC_VERBOSITY": "ERROR", **environment}.items():  # the command sets GRPC_VERBOSITY itself
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(ROOT)
        monkeypatch.setattr(sys, "argv", words)
        with Path(os.devnull).open() as nothing:
            monkeypatch.setattr(sys, "stdin", nothing)
            status = main()
        output, errors = capsys.readouterr()
    assert words.count("dra-driver") == 1
    assert status in {ExitCode.OK, ExitCode.NO_MATCH}, f"{example}\n{output}{errors}"
    assert "Traceback" not in errors


def in_shell(example: str, environment: dict[str, str]) -> tuple[int, str, str]:
    done = subprocess.run(
        ["bash", "-c", example], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr
