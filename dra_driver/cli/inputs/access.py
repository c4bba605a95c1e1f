"""The options that select a cluster, namespaces and labels, as in kubectl.

In: click's parameters `kubeconfig`, `context`, `namespace`, `everywhere`. Out: a `ClusterAccess`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from dra_driver.cli.inputs.kubeconfig import default_kubeconfig
from dra_driver.model.errors import UsageError
from dra_driver.model.names import is_dns_label
from dra_driver.views.access import ClusterAccess

kubeconfig_option = click.option(
    "--kubeconfig", metavar="FILE", default=None, help="The cluster to read, unless files or profiles are named."
)
context_option = click.option("--context", metavar="NAME", default="", help="A context of the kubeconfig.")
everywhere_option = click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="All namespaces.")
labels_option = click.option(
    "-l", "--selector", "labels", metavar="LABELS", default="", help="Labels, as in kubectl get -l."
)

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def namespace_option(text: str) -> _Decorator:
    """Return the option -n, with its help."""
    return click.option("-n", "--namespace", metavar="NAME", default="", help=text)


def access_options(namespace: str = "The namespace [default: the kubeconfig's; all, if files are read].") -> _Decorator:
    """Return a decorator that adds --kubeconfig, --context, -n with the help `namespace`, -A and -l."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        named = namespace_option(namespace)
        for decorate in (labels_option, everywhere_option, named, context_option, kubeconfig_option):
            function = decorate(function)
        return function

    return add


def access_of(given: Mapping[str, Any]) -> ClusterAccess:
    """Return the cluster that the options name. Raises: UsageError."""
    namespace = given.get("namespace") or ""
    if given.get("everywhere") and namespace:
        raise UsageError("namespace", "-n and -A can't be combined: use one of them")
    if namespace and not is_dns_label(namespace):
        raise UsageError("namespace", f"-n {namespace!r} is not the name of a namespace", hint="such as team-a")
    kubeconfig = given["kubeconfig"] or default_kubeconfig()
    return ClusterAccess(kubeconfig, given.get("context") or "", namespace)
