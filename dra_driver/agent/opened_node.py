"""Opened node: the API client, the ledger, the CDI folder and the kubelet's list of pods, opened for the agent.

In: options and the hardware. Out: an `OpenedNode`, which every part of the agent gets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from dra_driver.agent.options import Options
from dra_driver.cdi.store import CdiStore
from dra_driver.hardware.port import Hardware
from dra_driver.kube.api import KubeApi
from dra_driver.kube.credentials.loading import load_credentials
from dra_driver.kube.events import NodeEvents
from dra_driver.kube.paths import CLAIMS
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.locks import NodeLocks
from dra_driver.plugin.node_claims.listed_claims import ListedClaims
from dra_driver.plugin.node_claims.node_claims import NodeClaims
from dra_driver.plugin.node_claims.pod_resources import PodResources
from dra_driver.plugin.node_identity import NodeIdentity, this_node
from dra_driver.plugin.repair.recovery import CdiClaimFiles


@dataclass(frozen=True)
class OpenedNode:
    """Everything that each part of the agent needs: identity, API client, ledger, CDI files."""

    options: Options
    hardware: Hardware
    identity: NodeIdentity
    api: KubeApi
    ledger: Ledger
    locks: NodeLocks
    store: CdiStore
    kubelet: PodResources
    claims: NodeClaims
    events: NodeEvents


def open_node(options: Options, hardware: Hardware) -> OpenedNode:
    """Open the files and connections of the agent. Raises: DriverError."""
    api, store = KubeApi(load_credentials(options.kubeconfig)), CdiStore(options.cdi_root)
    identity = this_node(options.node, options.driver, options.roots.proc)
    files = CdiClaimFiles(store, options.driver)
    ledger = Ledger(options.data_dir / "ledger.db", boot_id=identity.boot_id, files=files)
    kubelet = PodResources(options.pod_resources, options.driver)
    listed = _listed_claims(options, identity, api)
    claims = NodeClaims(identity, options.node, api=api, kubelet=kubelet, ledger=ledger, listed=listed)
    locks, events = NodeLocks(options.data_dir / "locks"), NodeEvents(api, node=options.node, driver=options.driver)
    return OpenedNode(options, hardware, identity, api, ledger, locks, store, kubelet, claims, events)


def _listed_claims(options: Options, identity: NodeIdentity, api: KubeApi) -> ListedClaims | None:
    if not options.lists_claims:
        return None
    from dra_driver.kube.pages import objects  # noqa: PLC0415 - only where lists are wanted

    listing = partial(objects, api, CLAIMS, patience_s=0.0)  # the caller waits for the list
    return ListedClaims(listing, api, driver=identity.driver, pools=(options.node, identity.pool))
