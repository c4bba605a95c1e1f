"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler of one cluster, as command lines.

In: program paths, the folder, the authority. Out: daemons. All settings are those of a real cluster, except what keeps
it small (no leader election, no fsync in etcd).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from cluster.daemon import Daemon
from cluster.pki import CLUSTER_IP
from cluster.sandbox import Sandbox

GATES = (
    "DRAPartitionableDevices",
    "DRADeviceTaints",
    "DRADeviceTaintRules",
    "DRAConsumableCapacity",
    "DRAExtendedResource",
    "DRAAdminAccess",
    "DRAPrioritizedList",
    "DRADeviceBindingConditions",
    "DRAResourceClaimDeviceStatus",
    "ResourceHealthStatus",
)
_SINCE = {"DRADeviceTaintRules": "1.35"}  # earlier versions refuse to start with a gate that they don't know
API_VERSIONS = ("v1", "v1beta1", "v1beta2", "v1alpha3")
# Log every request of a ServiceAccount in the driver's namespace, with what was sent and what was stored.
AUDIT = "audit.log"
AUDITED = "system:serviceaccounts:dra-driver"
# Every port is free inside the network namespace.
ETCD = "http://127.0.0.1:2379"
SERVER = f"https://{CLUSTER_IP}:443"


def gates_of(version: str) -> tuple[str, ...]:
    """Return those of our feature gates that a Kubernetes version has."""
    return tuple(gate for gate in GATES if version >= _SINCE.get(gate, ""))


def gate_flags(gates: tuple[str, ...]) -> list[str]:
    """Return the feature gate flag of every component; without gates all have the version's defaults."""
    return ["--feature-gates=" + ",".join(f"{gate}=true" for gate in gates)] if gates else []


def etcd(sandbox: Sandbox, programs: Mapping[str, Path]) -> Daemon:
    """Return etcd, with its data below the cluster's folder."""
    argv = [
        programs["etcd"],
        f"--data-dir={sandbox.root / 'etcd'}",
        "--unsafe-no-fsync",
        "--log-level=warn",
        f"--listen-client-urls={ETCD}",
        f"--advertise-client-urls={ETCD}",
    ]
    return Daemon(sandbox, "etcd", [str(word) for word in argv])


def api_server(
    sandbox: Sandbox, programs: Mapping[str, Path], advertise: str, gates: tuple[str, ...], pod_security: str
) -> Daemon:
    """Return the API server, on every address of the namespace, including that of the `kubernetes` Service."""
    pki = sandbox.root / "pki"
    runtime = ",".join(f"resource.k8s.io/{version}=true" for version in API_VERSIONS)
    argv = [
        str(programs["kube-apiserver"]),
        f"--etcd-servers={ETCD}",
        "--bind-address=0.0.0.0",
        "--secure-port=443",
        f"--advertise-address={advertise}",
        "--service-cluster-ip-range=10.96.0.0/24",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--token-auth-file={pki / 'tokens.csv'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
        f"--kubelet-client-key={pki / 'kubelet-client.key'}",
        f"--kubelet-certificate-authority={pki / 'ca.crt'}",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki / 'sa.pub'}",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        "--allow-privileged=true",
        "--enable-aggregator-routing=true",
        "--profiling=false",
        f"--admission-control-config-file={_admission(sandbox.root, pod_security)}",
        f"--audit-policy-file={_audit_policy(sandbox.root)}",
        f"--audit-log-path={sandbox.root / AUDIT}",
        *([f"--runtime-config={runtime}"] if gates else []),
        *gate_flags(gates),
    ]
    return Daemon(sandbox, "kube-apiserver", argv)


def _admission(root: Path, pod_security: str) -> Path:
    """Write the admission configuration: a pod security level, and priority classes limited by quota.

    As on GKE, pods may use the system's priority classes only where a quota allows it.
    """
    scope = {
        "scopeName": "PriorityClass",
        "operator": "In",
        "values": ["system-node-critical", "system-cluster-critical"],
    }
    quota = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "ResourceQuotaConfiguration",
        "limitedResources": [{"resource": "pods", "matchScopes": [scope]}],
    }
    level = {
        "apiVersion": "pod-security.admission.config.k8s.io/v1",
        "kind": "PodSecurityConfiguration",
        "defaults": {"enforce": pod_security, "enforce-version": "latest"},
    }
    plugins = [
        {"name": "ResourceQuota", "configuration": quota},
        {"name": "PodSecurity", "configuration": level},
    ]
    path = root / "admission.json"
    content = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": plugins}
    path.write_text(json.dumps(content))
    return path


def _audit_policy(root: Path) -> Path:
    rules = [
        {"level": "RequestResponse", "userGroups": [AUDITED], "omitStages": ["RequestReceived"]},
        {"level": "None"},
    ]
    path = root / "audit-policy.json"
    path.write_text(json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}))
    return path


def controller_manager(
    sandbox: Sandbox, programs: Mapping[str, Path], kubeconfig: Path, gates: tuple[str, ...]
) -> Daemon:
    """Return the controllers: claims, garbage collection, ServiceAccounts, taint eviction."""
    pki = sandbox.root / "pki"
    argv = [
        str(programs["kube-controller-manager"]),
        *_client(kubeconfig),
        f"--service-account-private-key-file={pki / 'sa.key'}",
        f"--root-ca-file={pki / 'ca.crt'}",
        "--use-service-account-credentials=true",
        *gate_flags(gates),
    ]
    return Daemon(sandbox, "kube-controller-manager", argv)


def scheduler(sandbox: Sandbox, programs: Mapping[str, Path], kubeconfig: Path, gates: tuple[str, ...]) -> Daemon:
    """Return the scheduler."""
    return Daemon(
        sandbox, "kube-scheduler", [str(programs["kube-scheduler"]), *_client(kubeconfig), *gate_flags(gates)]
    )


def _client(kubeconfig: Path) -> list[str]:
    kinds = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    return [*(f"--{kind}={kubeconfig}" for kind in kinds), "--leader-elect=false", "--bind-address=127.0.0.1"]
