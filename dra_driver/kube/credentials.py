"""Credentials: from a kubeconfig, or from the pod's own ServiceAccount."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from dra_driver.base.errors import NodeError
from dra_driver.kube.kubeconfig import Credentials, StaticToken, TlsMaterial, TokenFile, read_kubeconfig

# Credentials: from a kubeconfig, or from the pod's own ServiceAccount.

# Where the kubelet projects a pod's ServiceAccount.
SERVICE_ACCOUNT_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105  a path
SERVICE_ACCOUNT_CA = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
_MAX_FILE = 1 << 20


def load_credentials(
    kubeconfig: str | None,
    *,
    context: str = "",
    token_file: str = SERVICE_ACCOUNT_TOKEN,
    ca_file: str = SERVICE_ACCOUNT_CA,
) -> Credentials:
    """Load a context of a kubeconfig ("": its current one), or the pod's ServiceAccount if no kubeconfig is given.

    Raises: InputError("input.kubeconfig"); NodeError("node.no-credentials") outside a pod.
    """
    if not kubeconfig:
        return _in_cluster(token_file, ca_file)
    return read_kubeconfig(kubeconfig, context) or _official(kubeconfig, context)


def load_server(kubeconfig: str | None, *, ca_file: str = SERVICE_ACCOUNT_CA) -> Credentials:
    """Load the server's address and the means to verify it, without credentials of a client.

    Raises: InputError("input.kubeconfig"); NodeError("node.no-credentials") outside a pod.
    """
    if not kubeconfig:
        return Credentials(_server_of_pod(ca_file), StaticToken(), TlsMaterial(ca_file=ca_file))
    found = read_kubeconfig(kubeconfig) or _official(kubeconfig, "")
    tls = found.tls
    if tls is not None:
        tls = replace(tls, cert_file="", key_file="", cert_pem=b"", key_pem=b"")
    return Credentials(found.server, StaticToken(), tls)


def _in_cluster(token_file: str, ca_file: str) -> Credentials:
    server = _server_of_pod(token_file, ca_file)
    return Credentials(server, TokenFile(token_file), TlsMaterial(ca_file=ca_file))


def _server_of_pod(*files: str) -> str:
    """Return the address of the API server of the pod's cluster, after checking the ServiceAccount's files."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    if not host or not port:
        raise _no_credentials("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
    if not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 1 << 16):
        raise _no_credentials(f"KUBERNETES_SERVICE_PORT={port[:20]!r} is not a port")
    for path in files:
        _check_file(path)
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _check_file(path: str) -> None:
    """Raise NodeError unless a file of the ServiceAccount exists, can be read and is not empty."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_FILE)
    except OSError as err:
        raise _no_credentials(f"{path} can't be read: {err.strerror}") from err
    if not content.strip():
        raise _no_credentials(f"{path} is empty")


def _no_credentials(why: str) -> NodeError:
    hint = "outside a pod set --kubeconfig (or KUBECONFIG)"
    return NodeError("no-credentials", f"no ServiceAccount of a pod: {why}", hint=hint)


def _official(kubeconfig: str, context: str) -> Credentials:
    from dra_driver.kube.official import load_official  # noqa: PLC0415 - only for exec and auth-provider users

    return load_official(kubeconfig, context)
