"""Completion as shells and kubectl call it: with real bash, zsh, fish and kubectl where they are installed."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cluster.components import parts
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.store import CLAIMS, SLICES
from dra_driver.tools.main import PROGRAMS, SHELLS, complete, script
from tests.support.api.embedded_client import slice_wire

MODULES = {"dra-driver": "main", "kubectl-dra": "kubectl_plugin"}
DEADLINE_SECONDS = 60


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """An environment in which the wheel's three programs are on PATH, and no kubeconfig."""
    folder = tmp_path / "bin"
    folder.mkdir()
    calls = {name: f"from dra_driver.__main__ import {it} as run" for name, it in MODULES.items()}
    calls["kubectl_complete-dra"] = "from dra_driver.tools.main import kubectl_complete as run"
    for name, call in calls.items():
        (folder / name).write_text(f"#!{sys.executable}\nimport sys\n{call}\nsys.exit(run())\n")
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path), "KUBECONFIG": "",
           "TERM": "dumb", "COLUMNS": "200"}  # fmt: skip


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    api = EmbeddedApi()
    api.start()
    for name in ("gpu-a-1", "gpu-a-2", "cpu-1"):
        api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    api.request("POST", SLICES.path(), body=slice_wire(devices=[{"name": "gpu-0000-1b-00-0"}]))
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "any"}}]}}
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    for namespace, name in (("default", "mine"), ("team", "ours")):
        api.request("POST", CLAIMS.path(namespace), body={"metadata": {"name": name}, "spec": spec})
    yield str(api.write_kubeconfig(tmp_path / "kubeconfig"))
    api.stop()


def answers(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert complete(words) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return [line.partition("\t")[0] for line in out.splitlines()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sl"], ["slices", ":4"]),
        (["in-"], ["in-use", ":4"]),
        (["pod-"], [":4"]),
        (["cel", "te"], ["test", ":4"]),
        (["slices", "--fleet", "dgx-h"], ["dgx-h100", ":4"]),
        (["slices", "--fleet=dgx-h"], ["--fleet=dgx-h100", ":4"]),
        (["slices", "-f", "a.yaml", "--fleet", "dgx-h"], ["dgx-h100", ":4"]),
        (["devices", "--hardware", "simulated:dgx-h"], ["simulated:dgx-h100", ":4"]),
        (["agent", "--mig-g"], ["--mig-geometry", ":4"]),
        (["explain", "depl"], ["deployment", ":4"]),
        (["slices", "--output", "js"], ["json", ":4"]),
        (["completion", "z"], ["zsh", ":4"]),
        (["check-config", ""], [":0"]),
        (["claims", "-f", ""], [":0"]),
        (["nonsense", ""], [":4"]),
        (["slices", "--nonsense", ""], [":4"]),
    ],
)
def test_commands_options_and_profiles_are_completed_without_a_cluster(words, expected, capsys, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    assert answers(capsys, *words) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["simulate", "--drain", "gpu"], ["gpu-a-1", "gpu-a-2", ":4"]),
        (["explain", "claim", ""], ["mine", ":4"]),
        (["explain", "claim/"], ["claim/mine", ":4"]),
        (["explain", "-n", "team", "claim", ""], ["ours", ":4"]),
        (["cel", "explain", "--device", "gpu-0"], ["gpu-0000-1b-00-0", ":4"]),
    ],
)
def test_names_are_completed_from_the_cluster(words, expected, capsys, monkeypatch, cluster):
    monkeypatch.setenv("KUBECONFIG", cluster)
    assert answers(capsys, *words) == expected


def test_names_are_completed_from_the_namespace_of_the_kubeconfig_or_of_the_context(capsys, monkeypatch, cluster):
    config = yaml.safe_load(Path(cluster).read_text())
    (context,) = config["contexts"]
    other = {"name": "other", "context": {**context["context"], "namespace": "default"}}
    context["context"]["namespace"] = "team"
    config["contexts"].append(other)
    Path(cluster).write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", cluster)
    assert answers(capsys, "explain", "claim", "") == ["ours", ":4"]
    assert answers(capsys, "explain", "--context", "other", "claim", "") == ["mine", ":4"]


def test_a_cluster_that_does_not_answer_completes_nothing(capsys, monkeypatch, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        file = tmp_path / "kubeconfig"
        file.write_text(
            f"clusters: [{{name: a, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n"
            "users: [{name: a, user: {}}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]\ncurrent-context: a\n"
        )
        monkeypatch.setenv("KUBECONFIG", str(file))
        assert answers(capsys, "simulate", "--drain", "") == [":4"]


def typed_on_a_terminal(argv: list[str], environment: dict[str, str], *steps: tuple[str, str]) -> str:
    """Run a shell on a terminal; wait for each step's text, then type its keys. Return what it wrote after the last."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(argv[0], argv, environment)
    seen, deadline = "", time.monotonic() + DEADLINE_SECONDS
    try:
        for awaited, keys in steps:
            while not re.search(awaited, seen):
                left = deadline - time.monotonic()
                assert left > 0, f"no {awaited!r} in {seen!r}"
                if select.select([terminal], [], [], left)[0]:
                    seen += os.read(terminal, 65536).decode(errors="replace")
            if keys:
                seen = ""
                os.write(terminal, keys.encode())
        return seen
    finally:
        os.close(terminal)
        os.kill(pid, 9)
        os.waitpid(pid, 0)


# Typed, completed by Tab, then turned into an `echo` (Ctrl-A goes to the line's start), so that the result is printed.
TYPED = [
    ("devices --hardware simulated:dgx-h\t", "devices --hardware simulated:dgx-h100"),
    ("slices --fleet=dgx-h\t", "slices --fleet=dgx-h100"),
    ("sl\t--fle\tl4\t", "slices --fleet l40s"),
]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_real_shell_completes_what_is_typed(shell, program, programs, tmp_path):
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(script(shell, program))
    argv = ["bash", "--norc", "--noprofile", "-i"] if shell == "bash" else ["zsh", "-f", "-i"]
    begin = "autoload -Uz compinit && compinit -u -D; bindkey -e; " if shell == "zsh" else ""
    begin += f"PS1='rea''dy> '; . {tmp_path / 'script'}\n"
    for typed, expected in TYPED if program == PROGRAMS[0] else TYPED[:1]:
        echoed = f"{program} {typed}\x01echo 'so'\"me:\" \n"
        steps = [(r"[#$%>] ?", begin), (r"ready> ", echoed), (r"some: [^\r\n]*[\r\n][\s\S]*ready> ", "")]
        assert f"some: {program} {expected}" in typed_on_a_terminal(argv, programs, *steps).replace("\r", "")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_real_fish_completes_what_is_typed(program, programs, tmp_path):
    if not shutil.which("fish"):
        pytest.skip("fish is not installed")
    (tmp_path / "script").write_text(script("fish", program))
    for typed, expected in (("sl", "slices"), ("slices --fleet dgx-h", "dgx-h100"), ("cel te", "test")):
        line = f"source {tmp_path / 'script'}; complete -C '{program} {typed}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", line], env=programs, capture_output=True, text=True, timeout=120, check=True
        )
        assert [one.partition("\t")[0] for one in done.stdout.splitlines()] == [expected], done.stderr
    (tmp_path / "rules.yaml").touch()
    line = f"cd {tmp_path}; source script; complete -C '{program} check-config rul'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", line], env=programs, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["rules.yaml"]


def test_kubectl_runs_the_plugin_and_gets_completions_from_it(programs):
    kubectl = shutil.which("kubectl") or next(
        (str(p.path / "kubectl") for v in parts.VERSIONS if (p := parts.kubernetes(v)).built()), None
    )
    if not kubectl:
        pytest.skip("kubectl is neither on PATH nor built (make cluster-binaries)")

    def said(*words: str) -> str:
        command = [kubectl, *words]
        done = subprocess.run(command, env=programs, capture_output=True, text=True, timeout=120, check=True)
        return done.stdout

    assert said("dra", "slices", "--help").startswith("Usage: kubectl dra slices")
    assert said("__complete", "dra", "sl").splitlines()[0].split("\t")[0] == "slices"
    assert "dgx-h100\n:4" in said("__complete", "dra", "slices", "--fleet", "dgx-h")
    assert said("__complete", "dra", "check-config", "").splitlines() == [":0"]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell_completes_both_programs(shell, capsys):
    from dra_driver.tools.main import run

    assert run(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert all(f"{name} __complete" in out for name in PROGRAMS)
