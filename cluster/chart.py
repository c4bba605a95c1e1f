"""The chart on a cluster: the built image on its nodes, and helm to install, upgrade and uninstall.

In: a cluster. Out: releases, and what their agents report. No registry is used; the image is imported on each node.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from cluster.agent import DRIVER
from cluster.api import Object
from cluster.cluster import REPOSITORY, Cluster
from cluster.components import programs
from cluster.machines.nvml_machine import NvmlMachine
from cluster.node import Node
from cluster.sandbox import until
from dra_driver import __version__

REPOSITORY_NAME, TAG = "cluster.lane/dra-driver", "cluster"
RELEASE = NAMESPACE = "dra-driver"
CHART = REPOSITORY / "deploy" / "helm"


def rendered(*templates: str, values: str) -> list[Object]:
    """Return the objects that templates of the chart make with these values, as `helm --set` takes them."""
    command = [str(programs.helm()), "template", "dra-driver", str(CHART), "-n", NAMESPACE]
    command += ["--kube-version", "1.35.0", "--set", values]
    command += [word for name in templates for word in ("--show-only", f"templates/{name}")]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    return [one for one in yaml.safe_load_all(said) if one]


@functools.cache
def image() -> Path:
    """Build the image of this tree for this machine unless it exists, and return the archive. Workers take turns."""
    output = REPOSITORY / "build" / "image"
    output.mkdir(parents=True, exist_ok=True)
    archive, stamp, sources = output / "image.tar", output / "sources", _sources()
    with (output / "lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if archive.exists() and stamp.exists() and stamp.read_text() == sources:
            return archive
        stamp.unlink(missing_ok=True)
        script = REPOSITORY / "deploy" / "image" / "build.py"
        command = [sys.executable, str(script), "--output", str(output), "--reference", f"{REPOSITORY_NAME}:{TAG}"]
        command += ["--architecture", {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
        stamp.write_text(sources)
    return archive


def _sources() -> str:
    """Return a digest of everything that the image is made of."""
    made_of = ["pyproject.toml", "requirements.lock", "deploy/image/*", "dra_driver/**/*"]
    digest = hashlib.sha256(f"{REPOSITORY_NAME}:{TAG}".encode())
    for path in sorted({path for pattern in made_of for path in REPOSITORY.glob(pattern)}):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(REPOSITORY)} {path.stat().st_mode}".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


class Chart:
    """One release of the chart."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.helm_program = programs.helm()
        for node in cluster.nodes:
            node.ctr("images", "import", str(image()))
            node.ctr("images", "tag", f"{REPOSITORY_NAME}:{TAG}", f"localhost/dra-driver:{__version__}")
            # The folders that the default values name. The folder of device plugins exists already.
            for outside, inside in (
                (node.registry, "/var/lib/kubelet/plugins_registry"),
                (node.plugins, "/var/lib/kubelet/plugins"),
                (node.kubelet_root / "pod-resources", "/var/lib/kubelet/pod-resources"),
                (node.cdi, "/var/run/cdi"),
            ):
                node.run("sh", "-ec", f"mkdir -p {inside} && mount --bind {outside} {inside}")

    def values(self, node: Node, **changed: str) -> list[str]:
        """Return the values for scenarios: the lane's image, simulated hardware, one node."""
        chosen = {
            "image.repository": REPOSITORY_NAME,
            "image.tag": TAG,
            "image.pullPolicy": "Never",
            "agent.hardware": "simulated:demo-h100",
            "agent.logFormat": "text",
            "agent.nodeSelector.kubernetes\\.io/hostname": node.name,
            **{name.replace("__", "."): value for name, value in changed.items()},
        }
        return [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]

    def helm(self, *arguments: str, timeout: float = 150) -> str:
        """Run helm as the administrator. Raises: SubprocessError with helm's output."""
        command = [str(self.helm_program), f"--kubeconfig={self.cluster.kubeconfig}", "-n", NAMESPACE, *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout)
        if done.returncode:
            raise subprocess.SubprocessError(f"helm {arguments[0]}: exit {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def install(self, node: Node, **changed: str) -> str:
        """Install, or upgrade, and wait until the agents are ready."""
        options = ["--install", "--create-namespace", "--wait", "--timeout", "120s"]
        return self.helm("upgrade", RELEASE, str(CHART), *options, *self.values(node, **changed))

    def install_plainly(self) -> str:
        """Install as a user would who sets no values."""
        return self.helm("install", RELEASE, str(CHART), "--create-namespace", "--wait", "--timeout", "120s")

    def run(self, pod: str, *command: str) -> str:
        """Run a command in an agent's container."""
        return self.cluster.kubectl("exec", "-n", NAMESPACE, pod, "--", *command)

    def in_agent(self, pod: str, code: str) -> str:
        """Run Python in an agent's container; there, `agent()` returns the agent's folder in /proc."""
        find = """import os
from pathlib import Path
def agent():
    own = f"POD_UID={os.environ['POD_UID']}".encode()
    for path in Path('/proc').glob('[0-9]*'):
        try:
            words = (path / 'cmdline').read_bytes().split(b'\\0')
            if b'agent' in words and own in (path / 'environ').read_bytes().split(b'\\0'):
                return path
        except OSError:
            pass  # it has ended
"""
        return self.run(pod, "/usr/bin/python3", "-c", find + code)

    def memory(self, pod: str) -> float:
        """Return the resident memory of an agent, in MiB."""
        code = "print(next(line.split()[1] for line in (agent() / 'status').open() if line.startswith('VmRSS')))"
        return int(self.in_agent(pod, code)) / 1024

    def uninstall(self) -> str:
        """Uninstall and wait until everything is gone."""
        return self.helm("uninstall", RELEASE, "--wait", "--timeout", "90s")

    def install_on(self, node: Node, machine: NvmlMachine, **values: str) -> None:
        """Install the chart with an agent that works on the fake NVIDIA library of a machine."""
        place = str(machine.folder)
        more = {
            "extraArgs": machine.flags,
            "extraEnv": [{"name": name, "value": value} for name, value in machine.environment.items()],
            "extraVolumes": [{"name": "machine", "hostPath": {"path": place}}],
            "extraVolumeMounts": [{"name": "machine", "mountPath": place}],
        }
        sets = [word for name, value in more.items() for word in ("--set-json", f"agent.{name}={json.dumps(value)}")]
        options = ["--install", "--create-namespace", "--wait", "--timeout", "120s", *sets]
        chosen = self.values(node, **{"agent__hardware": "nvidia", **values})
        self.helm("upgrade", "dra-driver", str(CHART), *options, *chosen)

    def pods(self) -> list[dict[str, Any]]:
        """Return the agents' pods."""
        return self.cluster.api.list("Pod", NAMESPACE, labelSelector="app.kubernetes.io/component=agent")

    def log(self, pod: str) -> str:
        """Return the log of an agent."""
        return self.cluster.kubectl("logs", "-n", NAMESPACE, pod)

    def slices(self, node: Node) -> list[dict[str, Any]]:
        """Return the slices of the driver on a node."""
        selector = f"spec.nodeName={node.name},spec.driver={DRIVER}"
        return self.cluster.api.list("ResourceSlice", fieldSelector=selector)

    def devices(self, node: Node) -> list[str]:
        """Return the names of a node's published devices."""
        return [device["name"] for found in self.slices(node) for device in found["spec"].get("devices") or []]

    def published(self, node: Node, seconds: float = 30) -> list[str]:
        """Wait until devices are published."""
        return until(f"devices on {node.name}", lambda: self.devices(node), seconds)
