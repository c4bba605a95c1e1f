"""Real API: etcd and kube-apiserver of one version on the loopback interface, for measurements beside other drivers.

In: a Kubernetes version whose components are built (`make cluster-binaries`). Out: a kubeconfig, for TLS.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cluster.components.parts import ETCD, BinariesMissing, Part, kubernetes
from cluster.pki import Authority
from dra_driver.base.errors import DriverError
from dra_driver.kube.api import KubeApi
from dra_driver.kube.credentials import load_credentials

START_S = 60.0


@contextmanager
def real_api(version: str, folder: Path) -> Iterator[Path]:
    """Run etcd and an API server below `folder`; yield the path of an administrator's kubeconfig.

    etcd syncs every write to the disk, as a cluster's does. Raises: BinariesMissing.
    """
    etcd_port, peer_port, port = _free_ports(3)
    authority = Authority(folder / "pki")
    authority.issue("apiserver", "/CN=kube-apiserver", "IP:127.0.0.1,DNS:localhost")
    token = authority.token("bench", "system:masters")
    kubeconfig = authority.kubeconfig("bench", token, f"https://127.0.0.1:{port}")
    etcd = [
        str(_program(ETCD, "etcd")),
        f"--data-dir={folder / 'etcd'}",
        "--log-level=error",
        f"--listen-client-urls=http://127.0.0.1:{etcd_port}",
        f"--advertise-client-urls=http://127.0.0.1:{etcd_port}",
        f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
    ]
    pki = folder / "pki"
    server = [
        str(_program(kubernetes(version), "kube-apiserver")),
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        "--service-cluster-ip-range=10.96.0.0/24",
        "--authorization-mode=Node,RBAC",
        f"--token-auth-file={pki / 'tokens.csv'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki / 'sa.pub'}",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        "--feature-gates=DRAPartitionableDevices=true,DRAConsumableCapacity=true",
        "--profiling=false",
    ]
    with _running(etcd, folder / "etcd.log"), _running(server, folder / "apiserver.log"):
        _wait(kubeconfig)
        yield kubeconfig


def _wait(kubeconfig: Path) -> None:
    deadline = time.monotonic() + START_S
    api = KubeApi(load_credentials(str(kubeconfig)))
    try:
        while True:
            try:
                api.request("GET", "/apis/resource.k8s.io/v1/resourceslices")
                api.request("GET", "/api/v1/namespaces/default")
            except DriverError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return
    finally:
        api.close()


@contextmanager
def _running(argv: Sequence[str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _program(part: Part, name: str) -> Path:
    if not part.built():
        raise BinariesMissing(f"{part.folder} is not built: run `make cluster-binaries`")
    return part.path / name


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
