"""`dra-driver console-server`: the console in a cluster, as the chart's Deployment runs it.

In: flags, each with an environment variable. Out: a server for all viewers, until SIGTERM.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dra_driver.base.errors import ExitCode, UsageError
from dra_driver.base.names import NVIDIA_DRIVER, check_driver_name
from dra_driver.tools.options import (
    access_of,
    context_option,
    fleet_option,
    kubeconfig_option,
    mig_option,
    namespace_option,
)
from dra_driver.tools.output import read_address

if TYPE_CHECKING:
    from dra_driver.tools.console.board import Board
    from dra_driver.tools.console.lookups import UsageSource
    from dra_driver.tools.webhook.server import Settings
    from dra_driver.tools.world.access import ClusterAccess, ProgressLines


# `dra-driver console`: show the fleet and its claims in a browser, and try selectors there.


def usage_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name the source of usage data."""
    for decorate in (
        click.option("--prices", metavar="FILE", default="", envvar="PRICES", help="A price table (docs/cost.md)."),
        click.option("--prometheus-ca-file", metavar="FILE", default="", help="The CA that signed its certificate."),
        click.option("--prometheus-token-file", metavar="FILE", default="", help="A file with a bearer token for it."),
        click.option(
            "--prometheus",
            metavar="URL",
            default="",
            envvar="PROMETHEUS",
            help="Show usage and dashboards, read from this Prometheus.",
        ),
    ):
        function = decorate(function)
    return function


def usage_source(given: dict[str, Any]) -> UsageSource:
    """Return the source of usage data that the options name."""
    from dra_driver.tools.console.lookups import UsageSource

    names = ("prometheus", "prometheus_token_file", "prometheus_ca_file", "prices")
    return UsageSource(*(given[name] for name in names))


@click.command(name="console")
@click.option(
    "-f", "--file", "files", multiple=True, metavar="FILE", help="Slices, claims and pods, instead of a cluster."
)
@fleet_option("Simulated nodes, instead of a cluster.")
@click.option(
    "--kubernetes",
    metavar="VERSION",
    default=None,
    help="The version whose rules apply [default: the cluster's, 1.35].",
)
@click.option(
    "--gate", "gates", multiple=True, metavar="NAME=BOOL", help="A feature gate that differs from the default."
)
@mig_option
@kubeconfig_option
@context_option
@namespace_option("The namespace to read if you may not read all [default: the kubeconfig's].")
@usage_options
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port on 127.0.0.1 [default: a free one].")
@click.option("--open", "opens", is_flag=True, help="Open the address in this machine's browser.")
def console_command(port: int, opens: bool, **given: Any) -> None:
    """Show the fleet in a browser, and try selectors on it.

    \b
    dra-driver console                                  the current cluster, with your own rights
    dra-driver console --fleet demo-h100                simulated nodes; no cluster is needed
    dra-driver console --fleet dgx-h100=1000 --open     also open the browser
    dra-driver console -f slices.yaml -f claims.yaml    the output of kubectl get -o yaml

    The address that is printed works once, in one browser. The pages are served on 127.0.0.1 only.
    """  # noqa: D301
    from functools import partial

    from dra_driver.tools.console.console import Console

    access = None if given["files"] or given["profiles"] else access_of(given)
    if access is not None:
        access.connect().close()  # so that bad credentials are an error of this command, not of a page
    console = Console(port)
    console.start(partial(_load, given, access), access, usage_source(given))
    click.echo(f"The console is at {console.address}\n(this address works once; Ctrl-C ends the console)")
    if opens:
        click.launch(console.address)
    console.serve()


def _load(given: dict[str, Any], access: ClusterAccess | None, lines: ProgressLines) -> Board:
    """Return the board of what the options name. Raises: InputError, UsageError."""
    from dra_driver.tools.console.board import Board
    from dra_driver.tools.options import given_gates
    from dra_driver.tools.world.workloads import world_of_files
    from dra_driver.tools.world.world import DEFAULT_VERSION, add_profiles, apply_rules

    if access is not None:
        return Board.of_cluster(access.context or "cluster")
    world = world_of_files(given["files"], lines)
    gates = given_gates(given["gates"], given["kubernetes"] or DEFAULT_VERSION)
    rules = apply_rules(world, given["kubernetes"], gates, given["mig"])
    add_profiles(world, given["profiles"])
    world.complete()
    return Board.of_world(world, rules, ", ".join([*given["files"], *given["profiles"]]))


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
    from dra_driver.base.telemetry import logs
    from dra_driver.tools.console.server import serve

    found = _console_settings(given)
    logs.set_up(log_format)
    serve(found)
    return ExitCode.OK


def _console_settings(given: dict[str, Any]) -> Any:
    """Return the settings. Raises: UsageError for flags that can't be combined."""
    from dra_driver.tools.console.server import ServerSettings
    from dra_driver.tools.console.sign_in import TrustedProxy

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


# `dra-driver webhook`: the admission webhook, as the chart's Deployment runs it.


@click.command(name="webhook")
@click.option("--address", default=":8443", show_default=True, envvar="ADDRESS", help="HOST:PORT to listen on.")
@click.option(
    "--driver-name",
    "driver_names",
    multiple=True,
    default=[NVIDIA_DRIVER],
    show_default=True,
    envvar="DRIVER_NAME",
    help="A driver whose configs are validated; repeatable.",
)
@click.option(
    "--kubeconfig", metavar="FILE", default=None, envvar="KUBECONFIG", help="Default: the pod's own ServiceAccount."
)
@click.option(
    "--tls-dir", metavar="DIR", default=None, envvar="TLS_DIR",
    help="The folder of tls.crt and tls.key, which someone else renews. Default: the webhook makes its own.",
)  # fmt: skip
@click.option("--namespace", default="", envvar="NAMESPACE", help="Namespace of Service and Secret.")
@click.option(
    "--service", default="dra-driver-webhook", show_default=True, envvar="SERVICE", help="Name of the Service."
)
@click.option(
    "--secret", default="dra-driver-webhook", show_default=True, envvar="SECRET", help="Secret for certificates."
)
@click.option(
    "--configuration", default="dra-driver-webhook", show_default=True, envvar="CONFIGURATION",
    help="ValidatingWebhookConfiguration whose caBundle is kept current.",
)  # fmt: skip
@click.option(
    "--client-ca",
    "client_authorities",
    metavar="FILE",
    default=None,
    envvar="CLIENT_CA",
    help="Answer reviews only to callers with a client certificate signed by these authorities.",
)
@click.option(
    "--client-name",
    "client_names",
    metavar="NAME",
    multiple=True,
    envvar="CLIENT_NAMES",
    help="With --client-ca: the common name or DNS name that such a certificate must have; repeatable. Default: any.",
)
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, envvar="LOG_FORMAT"
)
def webhook_command(log_format: str, **given: Any) -> int:
    """Validate opaque configs at admission, and warn of selectors that cause trouble.

    \b
    POST /configs     refuses configs of these drivers that the node would refuse, naming every fault and its field
    POST /selectors   never refuses; warns of selectors that name these drivers or their classes
    POST /images      never refuses; warns of images that need a newer CUDA than some devices support

    The webhook makes and renews its certificate and keeps it in a Secret, unless --tls-dir names a folder with one.
    """  # noqa: D301
    from dra_driver.base.telemetry import logs
    from dra_driver.tools.webhook.server import serve

    settings = _webhook_settings(given)
    logs.set_up(log_format)
    serve(settings)
    return ExitCode.OK


def _webhook_settings(given: dict[str, Any]) -> Settings:
    """Return the settings. Raises: UsageError for flags that can't be combined or have a wrong value."""
    from dra_driver.tools.webhook.server import Settings

    authorities, tls_dir = given["client_authorities"], given["tls_dir"]
    if not given["namespace"] and tls_dir is None:
        raise UsageError(
            "namespace",
            "--namespace is needed unless --tls-dir is given",
            hint="the webhook keeps its certificates in a Secret there",
        )
    if given["client_names"] and authorities is None:
        raise UsageError("client-name", "--client-name needs --client-ca", hint="add --client-ca FILE")
    return Settings(
        address=read_address(given["address"], ":8443"),
        drivers=tuple(check_driver_name(name) for name in dict.fromkeys(given["driver_names"])),
        kubeconfig=given["kubeconfig"],
        tls_dir=Path(tls_dir) if tls_dir else None,
        namespace=given["namespace"],
        service=given["service"],
        secret=given["secret"],
        configuration=given["configuration"],
        client_authorities=Path(authorities) if authorities else None,
        client_names=given["client_names"],
    )
