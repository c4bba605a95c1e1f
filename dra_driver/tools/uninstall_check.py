"""`dra-driver uninstall-check`: refuse `helm uninstall` while claims hold devices, and leave the release as it was.

The chart's Job runs it before helm removes anything. By then helm has noted in the release's own record that it is
being uninstalled, and a refusal does not undo that: helm would list the release no more, and refuse to upgrade it.
Therefore the record is set back here.
Source: Helm's storage driver for Secrets: JSON, compressed by gzip, in base64; the status is a label as well.
"""

from __future__ import annotations

import base64
import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import click

from dra_driver.base.errors import ApiError, ExitCode
from dra_driver.base.names import check_driver_name
from dra_driver.base.wire import Wire
from dra_driver.kube import paths
from dra_driver.kube.answers import NOT_FOUND
from dra_driver.kube.api import KubeApi
from dra_driver.tools.fleet.slices import report_claims_in_use
from dra_driver.tools.options import kubeconfig_option
from dra_driver.tools.output import printable
from dra_driver.tools.world.access import ClusterAccess

# `helm rollback` makes a new revision with the Job of an older one, so a Job serves this many revisions.
REVISIONS = 30
_UNINSTALLING, _DEPLOYED = "uninstalling", "deployed"
_REFUSED = "Uninstall refused: claims hold devices"
_UNREADABLE = (ValueError, KeyError, TypeError, OSError, EOFError, zlib.error)


@dataclass(frozen=True, slots=True)
class HelmRelease:
    """A release, and the revision whose chart has the Job."""

    namespace: str
    name: str
    revision: int

    def records(self) -> Iterator[str]:
        """Yield the names of the Secrets in which helm may have the release's newest record."""
        for revision in range(self.revision, self.revision + REVISIONS):
            yield f"sh.helm.release.v1.{self.name}.v{revision}"


@click.command(name="uninstall-check")
@click.option(
    "--driver-name", "driver_names", multiple=True, required=True, metavar="NAME", help="a driver; repeatable"
)
@click.option("--namespace", required=True, metavar="NAME", help="the release's namespace")
@click.option("--release", required=True, metavar="NAME", help="the release's name in helm")
@click.option("--revision", required=True, type=click.IntRange(1), help="the release's revision that has this Job")
@kubeconfig_option
def uninstall_check_command(
    driver_names: tuple[str, ...], namespace: str, release: str, revision: int, kubeconfig: str | None
) -> int:
    """Refuse to uninstall a release while claims hold devices of its drivers.

    Exit status 1: there are such claims; 5: the API server was not reached, or not all claims may be read.
    """
    names = [check_driver_name(name) for name in driver_names]
    access = ClusterAccess(kubeconfig)
    api, refused = access.connect(), HelmRelease(namespace, release, revision)
    status = ExitCode.ENVIRONMENT
    try:
        claims = access.read(api, "ResourceClaim", paths.CLAIMS)
        status = report_claims_in_use(claims, access.unseen, names)
        return status
    finally:
        if status != ExitCode.OK:
            sys.stdout.flush()
            click.echo(printable(_refusal(refused, is_reset=reset_record(api, refused))))
        api.close()


def _refusal(release: HelmRelease, *, is_reset: bool) -> str:
    """Return what a refused uninstall means for the release, and what to run next."""
    at = f"{release.name} -n {release.namespace}"
    again = f"When no claim holds a device any more, run it again: helm uninstall {at}\n(--no-hooks skips this check.)"
    if is_reset:
        return f"Nothing was uninstalled: release {release.name} is deployed as before.\n{again}"
    return (
        f"Nothing was uninstalled, but helm calls release {release.name} uninstalling and will not upgrade it.\n"
        f"{again}\nTo keep the release: helm history {at}; then, with its last revision,"
        f" helm rollback {release.name} REVISION -n {release.namespace}"
    )


def reset_record(api: KubeApi, release: HelmRelease) -> bool:
    """Set the release's record from uninstalling to deployed; return whether that was done."""
    for name in release.records():
        path = paths.secret_path(release.namespace, name)
        try:
            secret = api.request("GET", path)
            deployed = deployed_record(secret)
            if deployed is not None:
                api.request("PUT", path, body=deployed)
                return True
        except ApiError as error:
            if error.code != NOT_FOUND:
                return False  # helm may keep its records elsewhere (HELM_DRIVER)
    return False


def deployed_record(secret: Wire) -> Wire | None:
    """Return the Secret of a release that is being uninstalled as that of a deployed one; None for any other Secret."""
    try:
        record = json.loads(gzip.decompress(base64.b64decode(base64.b64decode(secret["data"]["release"]))))
        info = record["info"]
        if info["status"] != _UNINSTALLING:
            return None
    except _UNREADABLE:
        return None
    record["info"] = {**info, "status": _DEPLOYED, "deleted": "", "description": _REFUSED}
    packed = gzip.compress(json.dumps(record).encode(), mtime=0)
    labels = {**(secret["metadata"].get("labels") or {}), "status": _DEPLOYED}
    data = {**secret["data"], "release": base64.b64encode(base64.b64encode(packed)).decode()}
    return {**secret, "metadata": {**secret["metadata"], "labels": labels}, "data": data}
