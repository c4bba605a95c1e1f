"""The chart as helm renders it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]


CHART = ROOT / "deploy" / "helm"
PLUGINS = [
    "sharing.config.version=v1",
    "sharing.config.sharing.mps.resources[0].name=nvidia.com/gpu",
    "sharing.config.sharing.mps.resources[0].replicas=4",
]


def render(helm: str, *values: str, release: str = "dra-driver", namespace: str = "dra-driver") -> str:
    sets = [word for value in values for word in ("--set", value)]
    command = [helm, "template", release, str(CHART), "-n", namespace, "--kube-version", "1.35.0", *sets]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def objects(text: str) -> list[dict]:
    return [content for content in yaml.safe_load_all(text) if content]
