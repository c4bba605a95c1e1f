"""A live cluster as an input: its slices, classes and claims, read with the user's kubeconfig or a ServiceAccount.

In: access to a cluster. Out: wire objects. It only reads.
"""

from __future__ import annotations

from dra_driver.kube.answers import NOT_FOUND
from dra_driver.kube.paths import CLAIMS, CLASSES, SLICES, TEMPLATES, named, within
from dra_driver.model.errors import ApiError
from dra_driver.model.wire import Wire
from dra_driver.views.access import ClusterAccess
from dra_driver.views.fleet.devices import Fleet
from dra_driver.views.fleet.published_fleet import fleet_of_slices
from dra_driver.views.progress import NoProgress, ProgressLines

_SECONDS = 30.0


class Cluster:
    """A connection to one API server."""

    def __init__(self, access: ClusterAccess, lines: ProgressLines = NoProgress) -> None:
        """Load the credentials. `lines` shows the progress of long lists. Raises: InputError, NodeError."""
        self.name = access.kubeconfig or "in-cluster"
        self.access = access
        self._api = access.connect()
        self._lines = lines

    def fleet(self) -> Fleet:
        """Read all ResourceSlices. Raises: ApiError, InputError."""
        slices = [(f"ResourceSlice {wire['metadata']['name']}", wire) for wire in self._list(SLICES)]
        return fleet_of_slices(slices, f"cluster ({self.name})")

    def slices(self) -> list[Wire]:
        """Read all ResourceSlices as wire objects. Raises: ApiError."""
        return self._list(SLICES)

    def classes(self) -> list[Wire]:
        """Read all DeviceClasses. Raises: ApiError."""
        return [{"kind": "DeviceClass", **wire} for wire in self._list(CLASSES)]

    def claims(self) -> list[Wire]:
        """Read the ResourceClaims of the access; what may not be read is added to `access.unseen`. Raises: ApiError."""
        return self._read("ResourceClaim", CLAIMS)

    def templates(self) -> list[Wire]:
        """Read the ResourceClaimTemplates of the access, as `claims` does. Raises: ApiError."""
        return self._read("ResourceClaimTemplate", TEMPLATES)

    def _read(self, kind: str, path: str) -> list[Wire]:
        """Read the objects of a kind: in one namespace if the access names one, otherwise in all namespaces."""
        return self.access.read(self._api, kind, path, self._lines, at_home=bool(self.access.namespace))

    def find(self, kind: str, namespace: str, name: str) -> Wire | None:
        """Return one object of the kind whose objects are listed at a path; None if there is none. Raises: ApiError."""
        path = named(within(kind, namespace), name)
        try:
            return self._api.request("GET", path, timeout_s=_SECONDS)
        except ApiError as error:
            if error.code == NOT_FOUND:
                return None
            raise

    def kubernetes(self) -> str:
        """Return the server's Kubernetes version, such as "1.35". Raises: ApiError."""
        version = self._api.server_version()
        return f"{version.major}.{version.minor}"

    def close(self) -> None:
        """Close the connections."""
        self._api.close()

    def _list(self, path: str) -> list[Wire]:
        """List all objects, page by page."""
        from dra_driver.views.cluster_lists import read_list

        return read_list(self._api, path, f"{path.rpartition('/')[2]} read", self._lines)
