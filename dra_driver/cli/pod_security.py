"""`dra-driver pod-security`: let a namespace admit the agent's privileged pods, by its Pod Security label.

In: a namespace. Out: the level `privileged`, set if the namespace has no level; exit status 1 if it has a stricter one.
The chart runs this in a Job, because a chart can't change the namespace that it is installed into. Never: changes
another label, or a level that someone has set.
Source: Kubernetes Pod Security admission, labels of namespaces.
"""

from __future__ import annotations

import click

from dra_driver.kube.api import KubeApi
from dra_driver.kube.paths import NAMESPACES, named
from dra_driver.model.errors import ExitCode

LABEL = "pod-security.kubernetes.io/enforce"
LEVEL = "privileged"


@click.command(name="pod-security")
@click.option("--namespace", required=True, metavar="NAME", help="the namespace in which the agents are to run")
@click.option("--kubeconfig", metavar="FILE", default=None, help="the cluster (default: the pod's ServiceAccount)")
def pod_security_command(namespace: str, kubeconfig: str | None) -> int:
    """Set the namespace's Pod Security level to privileged if it has none.

    Exit status 1: the namespace has a stricter level; 5: the API server was not reached.
    """
    from dra_driver.kube.credentials.loading import load_credentials

    level, is_new = ensure(KubeApi(load_credentials(kubeconfig)), namespace)
    if level == LEVEL:
        click.echo(f"Namespace {namespace} {'now admits' if is_new else 'admits'} privileged pods.")
        return ExitCode.OK
    click.echo(f"Namespace {namespace} enforces the Pod Security level {level!r}: the agents can't run there.")
    click.echo(f"Run: kubectl label --overwrite namespace {namespace} {LABEL}={LEVEL}")
    return ExitCode.NO_MATCH


def ensure(api: KubeApi, namespace: str) -> tuple[str, bool]:
    """Set the level if there is none; return the level, and whether it is new. Raises: ApiError."""
    path = named(NAMESPACES, namespace)
    found = (api.request("GET", path)["metadata"].get("labels") or {}).get(LABEL)
    if found:
        return str(found), False
    body = {"metadata": {"labels": {LABEL: LEVEL}}}
    api.request("PATCH", path, body=body, content_type="application/merge-patch+json")
    return LEVEL, True
