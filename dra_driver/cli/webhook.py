"""`dra-driver webhook`: the admission webhook, as the chart's Deployment runs it.

In: flags, each with an environment variable. Out: an HTTPS server, until SIGTERM.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dra_driver.cli.inputs.address import read_address
from dra_driver.model.errors import ExitCode, UsageError
from dra_driver.model.names import NVIDIA_DRIVER, check_driver_name

if TYPE_CHECKING:
    from dra_driver.webhook.main import Settings


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
    from dra_driver.telemetry import logs
    from dra_driver.webhook.main import serve

    settings = _settings(given)
    logs.set_up(log_format)
    serve(settings)
    return ExitCode.OK


def _settings(given: dict[str, Any]) -> Settings:
    """Return the settings. Raises: UsageError for flags that can't be combined or have a wrong value."""
    from dra_driver.webhook.main import Settings

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
