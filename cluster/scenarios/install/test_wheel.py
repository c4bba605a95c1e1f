"""The command as people get it: the wheel of `make dist`, in an environment of its own, against a real cluster.

A newcomer reads files and simulated hardware, completes words in shells, and runs `kubectl dra`; an SRE looks at a node
and takes a device out of use; an account of one namespace asks for its own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cluster.agent import Agent
from cluster.cluster import REPOSITORY, Cluster
from cluster.node import Node
from cluster.sandbox import until
from cluster.scenarios.install.test_few_rights import NOT_KNOWN, kubeconfig_of
from cluster.stage import Stage
from cluster.workload import container, devices, pod, request, template
from dra_driver import __version__
from dra_driver.tools.schemas import schema_of
from dra_driver.tools.world.access import DocumentKind

pytestmark = pytest.mark.parametrize("agent", ["simulated"], indirect=True)
RULES = REPOSITORY / "examples" / "sharing" / "node" / "rules.yaml"
BAD_INPUT = 3
# What each shell is asked, with the wheel's programs on PATH: the candidates for what follows `--drain`.
ASKED = {
    "bash": 'source <(dra-driver completion bash); COMP_WORDS=(dra-driver simulate --drain ""); COMP_CWORD=3; '
    'COMP_LINE="dra-driver simulate --drain "; COMP_POINT=${#COMP_LINE}; _dra_driver; printf "%s\\n" "${COMPREPLY[@]}"',
    "zsh": "autoload -Uz compinit && compinit -u -D; source <(dra-driver completion zsh); whence _dra_driver; "
    'dra-driver __complete simulate --drain ""',
    "fish": "dra-driver completion fish | source; complete -C 'dra-driver simulate --drain '",
}


@dataclass(frozen=True, slots=True)
class Installed:
    """The wheel's programs in `folder`."""

    folder: Path

    def run(self, *words: str, kubeconfig: Path, program: str = "dra-driver") -> tuple[int, str, str]:
        """Run a program as it was installed; return its status, what it wrote, and what it complained of."""
        return self.run_any([str(self.folder / program), *words], kubeconfig)

    def run_any(self, argv: list[str], kubeconfig: Path) -> tuple[int, str, str]:
        """Run anything with the programs on PATH, in a folder that is not the checkout."""
        path = f"{self.folder}:{os.environ['PATH']}"
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        done = subprocess.run(
            argv, env=kept | {"PATH": path, "KUBECONFIG": str(kubeconfig)}, cwd=self.folder, capture_output=True,
            text=True, timeout=90, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel, built and installed; its dependencies are those of this run."""
    spec = importlib.util.spec_from_file_location("deploy_dist", REPOSITORY / "deploy" / "dist.py")
    assert spec is not None
    assert spec.loader is not None
    dist, before = importlib.util.module_from_spec(spec), list(sys.path)
    spec.loader.exec_module(dist)
    sys.path[:] = before
    folder = tmp_path_factory.mktemp("wheel")
    wheel = dist.wheel(folder, __version__)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True, timeout=120)
    python = folder / "venv" / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, timeout=120)
    (packages,) = (folder / "venv" / "lib").glob("python3.*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return Installed(folder / "venv" / "bin")


def document(done: tuple[int, str, str], kind: DocumentKind) -> dict[str, Any]:
    """Return what a command wrote for programs, when its schema allows it."""
    found: dict[str, Any] = json.loads(done[1])
    jsonschema.validate(found, schema_of(kind))
    return found


def test_a_newcomer_looks_at_simulated_devices_and_checks_files_before_a_rollout(
    installed: Installed, cluster: Cluster, agent: Agent, tmp_path: Path
) -> None:
    mine = cluster.kubeconfig
    assert installed.run("--version", kubeconfig=mine)[1].strip() == f"dra-driver {__version__}"
    shown = installed.run("devices", "--hardware", "simulated:demo-h100", "--mig", "static", kubeconfig=mine)
    assert (shown[0], "8 simulated GPUs" in shown[1]) == (0, True), shown
    words = ("devices", "--hardware", "simulated:demo-h100", "--node-name", "n", "-o", "json")
    offer = document(installed.run(*words, kubeconfig=mine), DocumentKind.NODE_OFFER)
    assert {one["name"] for one in offer["devices"]} >= set(agent.devices())
    checked = installed.run("check-config", str(RULES), "-o", "json", kubeconfig=mine)
    assert checked[0] == 0
    assert [one["fault"] for one in document(checked, DocumentKind.CONFIG_CHECK)["files"]] == [None]
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(RULES.read_text().replace("replicas:", "replica:", 1))
    status, out, err = installed.run("check-config", str(wrong), kubeconfig=mine)
    assert (status, "replica" in out + err) == (BAD_INPUT, True)


@pytest.mark.parametrize("shell", ASKED)
def test_a_shell_completes_names_of_the_cluster_by_the_installed_command(
    installed: Installed, cluster: Cluster, node: Node, agent: Agent, shell: str
) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    plain = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    status, out, err = installed.run_any([shell, *plain, "-c", ASKED[shell]], cluster.kubeconfig)
    assert (status, node.name in out.split()) == (0, True), (out, err)


def test_kubectl_runs_the_plugin_and_completes_what_is_in_the_cluster(
    installed: Installed, cluster: Cluster, node: Node, agent: Agent, stage: Stage
) -> None:
    def said(*words: str) -> str:
        status, out, err = installed.run_any([str(cluster.programs["kubectl"]), *words], cluster.kubeconfig)
        assert status in {0, 1}, err
        return out

    stage.create(
        template(stage.namespace, "one-gpu", devices(request("gpu"))),
        pod(stage.namespace, "user", container("main", "gpu"), templates={"gpu": "one-gpu"}),
    )
    stage.check("user")
    assert node.name in said("dra", "slices")
    assert said("__complete", "dra", "sl").startswith("slices\t")
    assert node.name in said("__complete", "dra", "simulate", "--drain", "").splitlines()
    claims = said("__complete", "dra", "explain", "-n", stage.namespace, "claim", "").splitlines()
    assert [line for line in claims if line.startswith("user-gpu-")]
    published = said("__complete", "dra", "cel", "explain", "--device", "gpu-").splitlines()
    assert [line for line in published if line.startswith("gpu-0000-")]
    assert published[-1] == ":4"


def test_an_sre_looks_at_a_node_and_takes_a_device_out_of_use(
    installed: Installed, cluster: Cluster, agent: Agent, stage: Stage
) -> None:
    where = ("--kubelet-plugins-directory-path", str(agent.node.plugins), "-o", "json")
    device = max(agent.devices())

    def ask(kind: DocumentKind, *words: str) -> tuple[int, dict[str, Any]]:
        done = installed.run(*words, *where, kubeconfig=cluster.kubeconfig)
        return done[0], document(done, kind)

    assert ask(DocumentKind.NODE_HEALTH, "health", "show")[1]["faults"] == []
    status, made = ask(DocumentKind.CORDON, "cordon", device, "--reason", "fan noise")
    assert (status, made["device"], made["reason"]) == (0, device, "fan noise")
    [row] = ask(DocumentKind.NODE_HEALTH, "health", "show")[1]["faults"]
    assert (row["device"], row["fault"], row["message"]) == (device, "cordoned", "fan noise")

    def is_out() -> bool:
        return device not in agent.devices() or bool(agent.devices()[device].get("taints"))

    until("the device is tainted or withheld", is_out, 30)
    assert ask(DocumentKind.CORDON, "uncordon", device)[1]["isCordoned"] is False
    until("the device is offered again", lambda: not is_out(), 30)
    assert ask(DocumentKind.CORDON, "uncordon", device)[0] == 1


def test_an_account_of_one_namespace_installs_the_wheel_and_asks_for_its_own(
    installed: Installed, cluster: Cluster, agent: Agent, stage: Stage, tmp_path: Path
) -> None:
    person = kubeconfig_of(cluster, stage.namespace, tmp_path)
    stage.create(
        template(stage.namespace, "one-gpu", devices(request("gpu"))),
        pod(stage.namespace, "mine", container("main", "gpu"), templates={"gpu": "one-gpu"}),
    )
    stage.check("mine")
    status, out, err = installed.run("claims", kubeconfig=person)
    assert (status, f"{stage.namespace}/mine-gpu-" in out, "dra-driver-viewer" in err) == (NOT_KNOWN, True, True)
    status, out, _ = installed.run("explain", "pod", "mine", kubeconfig=person)
    assert (status, "holds gpu-0000" in out) == (0, True), out
    status, out, _ = installed.run("__complete", "explain", "claim", "", kubeconfig=person)
    assert [line for line in out.splitlines() if line.startswith("mine-gpu-")], out
    assert installed.run("check-config", str(RULES), kubeconfig=person)[0] == 0
