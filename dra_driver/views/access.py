"""Access to a live cluster with the rights of the person who runs a command: which cluster, and what may be read.

In: a kubeconfig, a context, a namespace. Out: connections, lists of objects, and what could not be read and why. If a
list of all namespaces is refused, the list of the one namespace is read instead; what is still refused is
`UnseenObjects`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dra_driver.kube import paths
from dra_driver.kube.answers import FORBIDDEN
from dra_driver.kube.api import KubeApi
from dra_driver.kube.credentials.kubeconfig import read_namespace
from dra_driver.kube.credentials.loading import load_credentials
from dra_driver.model.errors import ApiError
from dra_driver.model.wire import Wire
from dra_driver.views.progress import NoProgress, ProgressLines

VIEWER = "dra-driver-viewer"  # the chart's ClusterRole for people; it lets them read slices, classes and nodes
OWN_VIEW = "view"  # Kubernetes' own role, to which the chart adds claims
_WHOLE_CLUSTER = frozenset({paths.NODES, paths.SLICES, paths.CLASSES})  # kinds that have no namespace


@dataclass(frozen=True, slots=True)
class UnseenObjects:
    """Objects of one kind that could not be read. `scope` is a namespace, or "" for the whole cluster.

    If `is_partial`, the objects in the person's own namespace were read, and all others were not.
    """

    kind: str
    scope: str
    is_partial: bool = False

    @property
    def where(self) -> str:
        """Return where the objects could not be read, and which role would permit it."""
        if self.is_partial:
            return f" of other namespaces than {self.scope} (bind ClusterRole {OWN_VIEW} for all of them)"
        if self.scope:
            return f" of namespace {self.scope} (bind ClusterRole {OWN_VIEW} there)"
        return f" (bind ClusterRole {VIEWER})"


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """A cluster and the part of it to be read. If `namespace` is "", that of the kubeconfig's context is used."""

    kubeconfig: str | None
    context: str = ""
    namespace: str = ""
    unseen: list[UnseenObjects] = field(default_factory=list)

    @property
    def home(self) -> str:
        """The namespace that is used if the user names none. Raises: InputError."""
        if self.namespace or not self.kubeconfig:
            return self.namespace or "default"
        return read_namespace(self.kubeconfig, self.context)

    def connect(self) -> KubeApi:
        """Connect to the cluster. Raises: InputError, NodeError."""
        return KubeApi(load_credentials(self.kubeconfig, context=self.context))

    def read(
        self, api: KubeApi, kind: str, path: str, lines: ProgressLines = NoProgress, *, at_home: bool = False
    ) -> list[Wire]:
        """Return all objects of a kind that may be read; `at_home` asks only for those of the namespace.

        What is refused is added to `unseen`. Raises: ApiError for any other failure.
        """
        has_namespaces = path not in _WHOLE_CLUSTER
        if not (has_namespaces and at_home):
            found = self._list(api, kind, path, lines)
            if found is not None or not has_namespaces:
                if found is None:
                    self.unseen.append(UnseenObjects(kind, ""))
                return found or []
        found = self._list(api, kind, paths.within(path, self.home), lines)
        if found is None or not at_home:
            self.unseen.append(UnseenObjects(kind, self.home, is_partial=found is not None))
        return found or []

    @staticmethod
    def _list(api: KubeApi, kind: str, path: str, lines: ProgressLines) -> list[Wire] | None:
        from dra_driver.views.cluster_lists import read_list

        try:
            return read_list(api, path, f"{kind}s read", lines)
        except ApiError as error:
            if error.code == FORBIDDEN:
                return None
            raise


def unseen_sentences(unseen: Sequence[UnseenObjects]) -> list[str]:
    """Return what could not be seen, in one sentence for all kinds that the same role would permit to read."""
    found: dict[str, list[str]] = {}
    for one in unseen:
        found.setdefault(one.where, []).append(kinds_word(one.kind))
    return [f"could not be seen: {_listed(kinds)}{where}" for where, kinds in found.items()]


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def kinds_word(kind: str) -> str:
    """Return a kind in the plural.

    >>> kinds_word("DeviceClass"), kinds_word("Pod")
    ('DeviceClasses', 'Pods')
    """
    return f"{kind}es" if kind.endswith("s") else f"{kind}s"


def unseen_document(unseen: Sequence[UnseenObjects]) -> list[Wire]:
    """Return the document of what could not be read."""
    return [{"kind": one.kind, "namespace": one.scope or None, "partial": one.is_partial} for one in unseen]
