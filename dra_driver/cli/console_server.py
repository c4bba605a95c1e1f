"""`dra-driver console-server`: the console in a cluster, as the chart's Deployment runs it.

In: flags, each with an environment variable. Out: a server for all viewers, until SIGTERM.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

import click

from dra_driver.cli.console import usage_options, usage_source
from dra_driver.cli.inputs.address import read_address
from dra_driver.model.errors import ExitCode, UsageError


@click.command(name="console-server")
@click.option(
    "--address", default="127.0.0.1:8080", show_default=True, envvar="ADDRESS", help="HOST:PORT to listen on."
)
@click.option("--tls-dir", type=click.Path(path_type=Path), metavar="DIR", default=None, envvar="TLS_DIR",
              help="The folder of tls.crt and tls.key. Without it, only a loopback address is allowed.")  # fmt: skip
@click.option("--host", "hosts", metavar="NAME", multiple=True, envvar="HOSTS",
              help="A name under which pages are opened; repeatable. Requests for any other are refused.")  # fmt: skip
@click.option(
    "--kubeconfig", metavar="FILE", default=None, envvar="KUBECONFIG", help="Default: the pod's ServiceAccount."
)
@click.option("--identity", type=click.Choice(["token", "review"]), default="token", show_default=True,
              envvar="IDENTITY", help="token: read with each viewer's own token. review: read with the console's "
              "rights, as far as reviews of the viewer's token and accesses permit.")  # fmt: skip
@click.option("--namespace", "namespaces", metavar="NAME", multiple=True, envvar="NAMESPACES",
              help="A namespace to try for viewers who may not list namespaces; repeatable.")  # fmt: skip
@click.option("--proxy-ca", type=click.Path(path_type=Path), metavar="FILE", default=None, envvar="PROXY_CA",
              help="With --identity review: the authorities of a proxy's client certificate.")  # fmt: skip
@click.option("--proxy-name", "proxy_names", metavar="NAME", multiple=True, envvar="PROXY_NAMES",
              help="The common name or DNS name that this certificate must have; repeatable.")  # fmt: skip
@click.option("--proxy-user-header", default="X-Remote-User", show_default=True, envvar="PROXY_USER_HEADER")
@click.option("--proxy-group-header", default="X-Remote-Group", show_default=True, envvar="PROXY_GROUP_HEADER",
              help="One header for each group.")  # fmt: skip
@click.option("--viewers", type=click.IntRange(1, 1000), default=16, show_default=True, envvar="VIEWERS",
              help="How many groups of viewers with different rights are served at the same time.")  # fmt: skip
@usage_options
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True,
              envvar="LOG_FORMAT")  # fmt: skip
def console_server_command(log_format: str, **given: Any) -> int:
    """Serve the console to several viewers, each of whom sees what they may read.

    \b
    dra-driver console-server                                      for kubectl port-forward
    dra-driver console-server --address :8443 --tls-dir /tls --host console.example.com
    dra-driver console-server ... --identity review --proxy-ca ca.crt --proxy-name oauth2-proxy

    A viewer signs in with a token of the API server, or a proxy in front of the console sends it (Authorization:
    Bearer). Headers that name a user are trusted only on a connection whose client certificate matches --proxy-ca and
    --proxy-name.
    """  # noqa: D301
    from dra_driver.telemetry import logs
    from dra_driver.web.viewers.server import serve

    found = _settings(given)
    logs.set_up(log_format)
    serve(found)
    return ExitCode.OK


def _settings(given: dict[str, Any]) -> Any:
    """Return the settings. Raises: UsageError for flags that can't be combined."""
    from dra_driver.web.viewers.identity import TrustedProxy
    from dra_driver.web.viewers.server import ServerSettings

    host, port = read_address(given["address"], "127.0.0.1:8080")
    if given["tls_dir"] is None and not _is_loopback(host):
        hint = "add --tls-dir, or listen on 127.0.0.1"
        raise UsageError(
            "address", f"without TLS, others could read the tokens that are sent to {given['address']}", hint=hint
        )
    _check_proxy(given)
    names = given["proxy_names"]
    headers = (given["proxy_user_header"].lower(), given["proxy_group_header"].lower())
    return ServerSettings(
        (host or "::", port),
        frozenset(given["hosts"]),
        given["kubeconfig"],
        given["tls_dir"],
        given["identity"] == "review",
        given["namespaces"],
        TrustedProxy(frozenset(names), *headers) if names else None,
        given["proxy_ca"],
        given["viewers"],
        usage_source(given),
    )


def _check_proxy(given: dict[str, Any]) -> None:
    """Refuse flags about a proxy that can't be combined. Raises: UsageError."""
    names = given["proxy_names"]
    if bool(names) != (given["proxy_ca"] is not None):
        raise UsageError("proxy", "--proxy-ca and --proxy-name must be set together")
    if names and (given["tls_dir"] is None or given["identity"] != "review"):
        hint = "a user's name has no token, so reviews are needed; and the proxy proves its identity by TLS"
        raise UsageError("proxy", "--proxy-ca needs --tls-dir and --identity review", hint=hint)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
