"""Credentials: from a kubeconfig, or from the pod's own ServiceAccount.

For users whose token a program or an identity provider supplies, the official client reads the kubeconfig. No other
module imports `kubernetes`, and this one only for such users, because the package takes some 20 MiB of memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from dra_driver.base.errors import InputError, NodeError
from dra_driver.base.telemetry.logs import fields
from dra_driver.kube.kubeconfig import Credentials, StaticToken, TlsMaterial, TokenFile, bearer, read_kubeconfig

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
    return read_kubeconfig(kubeconfig, context) or load_official(kubeconfig, context)


def load_server(kubeconfig: str | None, *, ca_file: str = SERVICE_ACCOUNT_CA) -> Credentials:
    """Load the server's address and the means to verify it, without credentials of a client.

    Raises: InputError("input.kubeconfig"); NodeError("node.no-credentials") outside a pod.
    """
    if not kubeconfig:
        return Credentials(_server_of_pod(ca_file), StaticToken(), TlsMaterial(ca_file=ca_file))
    found = read_kubeconfig(kubeconfig) or load_official(kubeconfig)
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
        unset = "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set"
        message = f"no kubeconfig was found, and this is not a pod: {unset}"
        raise NodeError("no-credentials", message, hint="name one with --kubeconfig, or in KUBECONFIG")
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


log = logging.getLogger(__name__)


def load_official(path: str, context: str = "") -> Credentials:
    """Load a context of a kubeconfig with the official loader. Raises: InputError("input.kubeconfig")."""
    from kubernetes.client.configuration import Configuration  # noqa: PLC0415  20 MiB, for such users only
    from kubernetes.config.kube_config import load_kube_config  # noqa: PLC0415

    log.info("kubeconfig needs the official loader", extra=fields(file=path, reason="exec or auth-provider"))

    def configure() -> Any:
        configuration = Configuration()
        load_kube_config(config_file=path, context=context or None, client_configuration=configuration)
        return configuration

    try:
        return _credentials(configure)
    except Exception as err:  # the loader runs other people's programs and may raise anything
        raise InputError("kubeconfig", f"kubeconfig {path} provides no credentials: {err}") from err


class OfficialToken:
    """A token that a Configuration of the official client holds, and that its hook renews when it is old."""

    def __init__(self, configure: Callable[[], Any], configuration: Any) -> None:
        self._configure = configure
        self._configuration = configuration
        self._lock = threading.Lock()
        self._header = ""

    def authorization(self) -> str:
        """Return the header's value, "" for none."""
        with self._lock:
            return self._current()

    def reread(self) -> bool:
        """Load everything again. Return whether the token now differs from the one that was refused."""
        with self._lock:
            refused = self._header
            with _errors_logged():
                self._configuration = self._configure()
            return self._current() != refused

    def _current(self) -> str:
        with _errors_logged():
            value = self._configuration.auth_settings().get("BearerToken", {}).get("value") or ""
            kind, _, token = value.partition(" ")
            self._header = bearer(token) if kind.lower() == "bearer" else value
        return self._header


@contextlib.contextmanager
def _errors_logged() -> Iterator[None]:
    """Log an error instead of raising it: the last token is kept, and the server decides whether it is still valid."""
    try:
        yield
    except Exception as err:  # noqa: BLE001  the loader runs other people's programs and may raise anything
        log.warning("token can't be renewed", extra=fields(err=str(err)))


def _credentials(configure: Callable[[], Any]) -> Credentials:
    configuration = configure()
    server = configuration.host.rstrip("/")
    tls = TlsMaterial(
        ca_file=configuration.ssl_ca_cert or "",
        cert_file=configuration.cert_file or "",
        key_file=configuration.key_file or "",
        server_name=configuration.tls_server_name or "",
        is_unverified=not configuration.verify_ssl,
    )
    return Credentials(server, OfficialToken(configure, configuration), tls if server.startswith("https://") else None)
