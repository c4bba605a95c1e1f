"""Credentials from a kubeconfig, or from the pod's own ServiceAccount; the only module that imports `kubernetes`.

The official package costs much memory when imported as a whole, since its front modules import requests, oauthlib,
websocket and yaml. Only two parts of it are needed: its in-cluster loader and, for `exec` and `auth-provider` users,
its kubeconfig loader. Both are imported with the front modules present but not executed. Should a release of the
package not allow that, the plain import does the same with more memory.
"""

from __future__ import annotations

import os
from pathlib import Path

from dra_driver.kube.kubeconfig import Credentials, read_kubeconfig
from dra_driver.kube.tls import TlsMaterial
from dra_driver.kube.tokens import TokenFile
from dra_driver.model.errors import NodeError

log = logging.getLogger(__name__)

_FRONT_MODULES = ("kubernetes", "kubernetes.config")
# Where the kubelet mounts a pod's ServiceAccount (Kubernetes, "Accessing the Kubernetes API from a Pod").
SERVICE_ACCOUNT_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105  a path
SERVICE_ACCOUNT_CA = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
_FILE_MAX = 1 << 20


def load(
    kubeconfig: str | None, *, token_file: str = SERVICE_ACCOUNT_TOKEN, ca_file: str = SERVICE_ACCOUNT_CA
) -> Credentials:
    """Load a kubeconfig's current context, or the pod's ServiceAccount if no kubeconfig is given.

    Raises: InputError("input.kubeconfig"); NodeError("node.no-credentials") outside a pod.
    """
    if not kubeconfig:
        return _in_cluster(token_file, ca_file)
    return read_kubeconfig(kubeconfig) or _official(kubeconfig)


def _in_cluster(token_file: str, ca_file: str) -> Credentials:
    """Use the official in-cluster loader, which reads the token again when its copy is a minute old."""


def _check_file(path: str) -> None:
    """Raise NodeError unless a file of the ServiceAccount is there, may be read and holds something."""
    try:
        return _from_configuration(configure)
    except Exception as err:  # its ConfigException can't be named without importing its module
        raise NodeError(
            "no-credentials",
            f"no ServiceAccount of a pod was found: {err}",
            hint="outside a pod set --kubeconfig (or KUBECONFIG)",
        ) from err


def _official_kubeconfig(path: str) -> Credentials:
    """Use the official kubeconfig loader, for users whose token comes from a program or an identity provider."""
    log.info("kubeconfig needs the official loader", extra=fields(file=path, reason="exec or auth-provider"))

    def configure() -> Any:
        from kubernetes.client.configuration import Configuration  # noqa: PLC0415  heavy; see the module's docstring
        from kubernetes.config.kube_config import load_kube_config  # noqa: PLC0415

        configuration = Configuration()
        load_kube_config(config_file=path, client_configuration=configuration)
        return configuration

    try:
        return _from_configuration(configure)
    except Exception as err:  # code and programs of others run here: any fault means that there are no credentials
        raise InputError("kubeconfig", f"kubeconfig {path} gives no credentials: {err}") from err


def _official(kubeconfig: str) -> Credentials:
    from dra_driver.kube.official import load_official  # noqa: PLC0415 - for exec and auth-provider users alone

    def __init__(self, configure: Callable[[], Any], configuration: Any) -> None:
        self._configure = configure
        self._configuration = configuration
        self._lock = threading.Lock()
        self._header = ""

    def authorization(self) -> str:
        """Return the value of the header; "" for none."""
        with self._lock:
            return self._current()

    def reread(self) -> bool:
        """Load everything again; return whether the new token differs from the refused one."""
        with self._lock:
            refused = self._header
            with _logged():
                self._configuration = self._configure()
            return self._current() != refused

    def _current(self) -> str:
        with _logged():
            value = self._configuration.auth_settings().get("BearerToken", {}).get("value") or ""
            kind, _, token = value.partition(" ")
            self._header = bearer(token) if kind.lower() == "bearer" else value
        return self._header


@contextlib.contextmanager
def _logged() -> Iterator[None]:
    """Log that no new token can be had. The last one stays in use: the server decides whether it is still valid."""
    try:
        yield
    except Exception as err:  # noqa: BLE001  code or programs of others may raise anything
        log.warning("token can't be renewed", extra=fields(err=str(err)))


def _from_configuration(configure: Callable[[], Any]) -> Credentials:
    try:
        with light_import():
            configuration = configure()
    except ImportError as err:
        log.warning("light import of the kubernetes package failed", extra=fields(err=str(err)))
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


@contextlib.contextmanager
def light_import() -> Iterator[None]:
    """Allow submodules of `kubernetes` to be imported without executing its front modules.

    The empty front modules are removed afterwards, so that a later import of the whole package works.
    """
    seeded = [name for name in _FRONT_MODULES if name not in sys.modules]
    try:
        for name in seeded:
            spec = importlib.util.find_spec(name)
            if spec is None:
                break
            sys.modules[name] = importlib.util.module_from_spec(spec)
        yield
    finally:
        for name in seeded:
            sys.modules.pop(name, None)
