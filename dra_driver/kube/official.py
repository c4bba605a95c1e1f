"""Credentials from the official client, for kubeconfig users whose token a program or an identity provider supplies.

In: a kubeconfig's path. Out: `Credentials`. No other module imports `kubernetes`, and this one is imported only for
such users, because the package takes some 20 MiB of memory.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

from kubernetes.client.configuration import Configuration
from kubernetes.config.kube_config import load_kube_config

from dra_driver.base.errors import InputError
from dra_driver.base.telemetry.logs import fields
from dra_driver.kube.kubeconfig import Credentials, TlsMaterial, bearer

log = logging.getLogger(__name__)


def load_official(path: str, context: str = "") -> Credentials:
    """Load a context of a kubeconfig with the official loader. Raises: InputError("input.kubeconfig")."""
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
