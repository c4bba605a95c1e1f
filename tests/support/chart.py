"""The chart as helm renders it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]

CHART = ROOT / "deploy" / "helm"
PLUGINS = [
    "sharing.config.version=v1",
    "sharing.config.sharing.mps.resources[0].name=nvidia.com/gpu",
    "sharing.config.sharing.mps.resources[0].replicas=4",
]
OURS = ["sharing.config.version=rules/v1", "sharing.config.rules[0].replicas=4"]
CASES = {
    "defaults": [],
    "runtime-class": ["agent.runtimeClassName=nvidia", "seamlessUpgrade=false", "agent.metricsPort=0"],
    "everything": [
        "namespace.create=true",
        "deviceClasses.extendedResources.enabled=true",
        "deviceClasses.extendedResources.migProfiles={1g.10gb,1g.10gb+me}",
        "metrics.serviceMonitor.enabled=true",
        "networkPolicy.enabled=true",
        "driverManager.enabled=true",
        "agent.driverRoot=/run/nvidia/driver",
        "agent.gpuDirectStorage=true",
        "agent.publishBesideDevicePlugin=true",
        "agent.mig.mode=static",
        "agent.mig.geometry=gpu-*:all-balanced;label",
        "agent.mig.configMap=mig-configs",
        "sharing.config.version=rules/v1",
        "sharing.config.rules[0].replicas=4",
        "sharing.config.rules[0].sharing.strategy=MPS",
        "driverName=gpu.example.com",
    ],
    "tenants": [
        "mps.tenants=namespace",
        "mps.namespaces={team-b,team-c}",
        "mps.otherClasses={our-shares.example.com}",
        "sharing.config.version=rules/v1",
        "sharing.config.rules[0].replicas=4",
        "sharing.config.rules[0].sharing.strategy=MPS",
        "sharing.config.rules[0].namespaces={team-a,team-b}",
    ],
    "webhook": [
        "webhook.enabled=true",
        "webhook.failurePolicy=Fail",
        "webhook.callers.configMap=api-servers",
        "webhook.callers.names={kube-apiserver-1,kube-apiserver-2}",
        "webhook.callers.networks={10.0.0.0/28,fd00::/64}",
        "networkPolicy.enabled=true",
        "configPolicy.enabled=true",
    ],
    "known-readers": [
        "metrics.readers=authorized",
        "metrics.tls.issuerRef.kind=ClusterIssuer",
        "metrics.tls.issuerRef.name=internal",
        "metrics.serviceMonitor.enabled=true",
        "networkPolicy.enabled=true",
        r"networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.kubernetes\.io/metadata\.name=monitoring",
    ],
}


def render(
    helm: str,
    *values: str,
    release: str = "dra-driver",
    namespace: str = "dra-driver",
    values_file: Path | None = None,
) -> str:
    sets = [word for value in values for word in ("--set", value)]
    sets += ["--values", str(values_file)] if values_file else []
    command = [helm, "template", release, str(CHART), "-n", namespace, "--kube-version", "1.35.0", *sets]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def objects(text: str) -> list[dict]:
    return [content for content in yaml.safe_load_all(text) if content]
