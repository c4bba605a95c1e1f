"""NodeAgent: the rooms of a node, wired.

    scanner ──inventory──► publisher   (only in the instance that holds the node's role)
       └────inventory──► preparer ◄──kubelet── plugin server

The plugin is registered before the first look at the hardware, because Unprepare needs only the ledger; Prepare waits.
While another driver of our name is registered, this one registers only if the ledger has claims, because the kubelet
calls the driver that registered last.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dra_driver import __version__
from dra_driver.agent.mig_offer import MigOffer
from dra_driver.agent.neighbours import Neighbours
from dra_driver.agent.options import Options
from dra_driver.agent.scanner import FIRST_LOOK, Scanner
from dra_driver.agent.sharing_rules import CurrentSharingRules
from dra_driver.cdi.store import CdiStore
from dra_driver.controller.publisher import Publisher
from dra_driver.hardware.facts import Facts
from dra_driver.hardware.port import Hardware
from dra_driver.inventory.device import Device
from dra_driver.inventory.mig.partitions import MigPolicy
from dra_driver.inventory.offering import Inventory
from dra_driver.inventory.sharing.rules import SharingRules
from dra_driver.kube import credentials
from dra_driver.kube.api import KubeApi
from dra_driver.kube.events import node_event, tell_node
from dra_driver.kube.paths import CLAIMS
from dra_driver.model.errors import ApiError, DriverError, NodeError, Retry
from dra_driver.mps.client import MpsClient, socket_path
from dra_driver.plugin.allocations import allocated_forms, allocated_names
from dra_driver.plugin.folder_use import FolderUse
from dra_driver.plugin.gone_claims import GoneClaims
from dra_driver.plugin.kubelet.server import Answered, PluginServer
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.locks import NodeLocks
from dra_driver.plugin.mig.declared_mig import DeclaredMig
from dra_driver.plugin.mig.geometry_source import GeometrySource
from dra_driver.plugin.mig.partition_owners import PartitionOwners
from dra_driver.plugin.node_claims.listed_claims import ListedClaims
from dra_driver.plugin.node_claims.node_claims import NodeClaims
from dra_driver.plugin.node_claims.pod_resources import PodResources
from dra_driver.plugin.node_identity import NodeIdentity, this_node
from dra_driver.plugin.prepare import Preparer
from dra_driver.plugin.reaper import Reaper
from dra_driver.plugin.recovery import has_claim_file, recover_from
from dra_driver.plugin.roles import NodeRole
from dra_driver.telemetry.logs import fields

if TYPE_CHECKING:
    from dra_driver.agent.status import StatusPage
    from dra_driver.telemetry.metrics import Snapshot

log = logging.getLogger(__name__)

DRAIN_SECONDS = 20.0  # a call takes milliseconds; one that waits for a device is repeated by the kubelet
VERDICT_SECONDS = 4.0  # how long to wait for the first slices to be published
POLL_SECONDS = 1.0  # between checks of what ends the agent


class NodeAgent:
    """One node's agent, from its first socket to its last."""

    def __init__(self, options: Options, hardware: Hardware) -> None:
        self._options, self._hardware = options, hardware
        data = options.data_dir
        self._tenancy = FolderUse(data)
        self._tenancy.enter()
        api = self._api = KubeApi(credentials.load(options.kubeconfig))
        store = CdiStore(options.cdi_root)
        self._page, self._count = self._open_page(options.metrics_address)
        node, locks = this_node(options.node, options.driver, options.roots.proc), NodeLocks(data / "locks")
        self._ledger = Ledger(
            data / "ledger.db",
            boot_id=node.boot_id,
            recover=recover_from(store, options.driver),
            has_file=partial(has_claim_file, store, options.driver),
        )
        self._node = node
        self._kubelet = PodResources(options.pod_resources, options.driver)
        claims = self._claims = NodeClaims(
            node, options.node, api=api, kubelet=self._kubelet, ledger=self._ledger, listed=self._listed(options, node)
        )
        self._publisher = Publisher(api, node=options.node, driver=options.driver, plain_now=self._plain_now)
        self._owners = PartitionOwners(hardware, self._ledger, locks, node.boot_id)
        self._mig = MigOffer(
            self._owners,
            is_dynamic=options.is_mig_dynamic,
            with_all=options.has_all_profiles,
            published=self._publisher.status,
            allocated=partial(allocated_names, claims, node),
            tell=self._tell_mig,
        )
        self._sharing = CurrentSharingRules(
            options.sharing_config,
            options.node,
            api=api,
            allocated=partial(allocated_forms, claims, node),
            tenants=options.mps_tenants,
        )
        self._scanner = Scanner(
            hardware,
            on_change=self._changed,
            on_driver_change=self._driver_changed,
            judge=self._judge,
            also=self._sharing.fingerprint,
        )
        self._preparer = Preparer(
            node,
            api=api,
            ledger=self._ledger,
            store=store,
            locks=locks,
            hardware=hardware,
            inventory=self._inventory,
            abandonment=GoneClaims(node, api, self._ledger, hardware, self._inventory, find=claims.find),
            pods_dir=options.kubelet_dir / "pods",
            mode_changed=self._scanner.look_again,
            supervisor=MpsClient(socket_path(data)),
            cgroups=Path(options.roots.sys) / "fs/cgroup",
        )
        self._server = PluginServer(
            driver=options.driver,
            registrar_dir=options.registrar_dir,
            plugins_dir=options.plugins_dir,
            pod_uid=options.pod_uid,
            preparer=self._preparer,
            answered=self._claim_answered,
        )
        self._geometer = DeclaredMig(
            GeometrySource(options.mig_geometry, options.node, api=api, kubelet=claims, file=options.mig_config),
            hardware=hardware,
            ledger=self._ledger,
            locks=locks,
            allocated=self._used_names,
            changed=self._scanner.look_now,
            tell=self._tell_mig,
        )
        self._reaper = Reaper(self._preparer, store, driver=options.driver, tidy=self._tidy, is_here=claims.is_here)
        self._role = NodeRole(data / "role.lock", gained=self._role_gained, lost=self._role_lost)
        self._must_restart = threading.Event()
        self._offering = threading.Lock()  # so that the later of two publications is the newer one
        self._has_looked = False
        self._others = Neighbours(
            options,
            api,
            self._ledger,
            store,
            kubelet=self._kubelet,
            claims=claims,
            boot_id=node.boot_id,
            changed=self._publish,
            alone=self._take_over,
        )
        self._is_serving = False

    def start(self) -> None:
        """Register, look at the hardware, and try to get the node's role. Raises: NodeError."""
        if self._page:
            self._page.start()
        self._others.start()
        self._scanner.start()
        self._role.start()
        if self._others.has_namesake and not self._count_claims():
            log.info("not registered because another driver has this name", extra=fields(driver=self._options.driver))
        else:
            self._serve()

    def wait(self, stop: threading.Event) -> bool:
        """Wait until asked to stop or until this process can't go on; return whether it has to be restarted."""
        while not stop.wait(POLL_SECONDS):
            if self._must_restart.is_set():
                return True
            if self._is_serving and not self._server.is_reachable:
                log.error("service socket was removed or replaced", extra=fields(driver=self._options.driver))
                return True
        return False

    def stop(self) -> None:
        """Shut down in the order in which nothing is lost: sockets, role, hardware, ledger, an unused folder."""
        self._others.stop()
        self._server.stop(DRAIN_SECONDS)
        self._role.stop()
        self._scanner.stop()
        if self._page:
            self._page.stop()
        is_needed = not self._is_ledger_empty()
        self._ledger.close()
        self._tenancy.leave(is_needed=is_needed)
        log.info("stopped", extra=fields(node=self._options.node))

    def let_go(self) -> None:
        """Release the vendor's library, so that the driver can be unloaded."""
        self._scanner.let_go()

    def resume(self) -> None:
        """Use the hardware again after `let_go`."""
        self._scanner.resume()

    def _changed(self, _inventory: Inventory) -> None:
        if self._geometer.is_declared or not self._has_looked:
            self._has_looked = True  # undo what had to wait for the first look at the hardware
            self._reaper.look_now()
        self._publish()
        try:
            self._preparer.refresh_cdi()
        except DriverError as error:
            log.warning("CDI files not refreshed", extra=fields(code=error.code, err=str(error)))

    def _publish(self) -> None:
        """Offer this node's devices, except those that a device plugin or another driver hands out or holds."""
        with self._offering:
            others, inventory = self._others, self._scanner.inventory
            if inventory is FIRST_LOOK or not (others.is_known or others.is_serving):
                return
            if others.has_namesake:
                self._publisher.withdraw()
                return
            if others.is_serving:
                self._publisher.publish(())
                return
            if self._mig.is_unsure:  # never withdraw what a claim may have been given
                self._scanner.look_again()
                return
            others.meet(inventory)
            self._publisher.publish(
                others.offer(inventory.devices),
                counter_sets=inventory.counter_sets,
                plain=others.offer(inventory.plain),
                instead={name: others.offer(forms) for name, forms in inventory.instead.items()},
            )

    def _take_over(self) -> None:
        try:
            self._serve()
        except DriverError as error:
            log.warning("restarting the process to register", extra=fields(code=error.code, err=str(error)))
            self._must_restart.set()

    def _serve(self) -> None:
        """Serve and register, unless that was done before. Raises: NodeError."""
        if not self._is_serving:
            self._server.start()
            self._is_serving = True

    def _tidy(self) -> int:
        self._others.look()
        return self._server.tidy() + self._apply_geometry()

    def _apply_geometry(self) -> int:
        """Partition GPUs as declared, unless that happens on demand, which is known once slices are published."""
        if not self._geometer.is_declared or self._others.is_serving:
            return 0
        if not self._publisher.wait_published(VERDICT_SECONDS):
            self._reaper.look_now()
            return 0
        is_on_demand = self._options.is_mig_dynamic and self._publisher.status().is_counting
        return self._geometer.stand_aside() if is_on_demand else self._geometer.apply()

    def _tell_mig(self, reason: str, message: str) -> None:
        options = self._options
        tell_node(self._api, node_event(options.node, options.driver, "Normal", reason, message))

    def _judge(self, facts: Facts) -> tuple[Facts, MigPolicy, SharingRules]:
        """Return the facts, how MIG is offered, and what is shared."""
        rules = self._sharing.look()
        facts, policy = self._mig.judge(facts)
        if not self._owners.is_settled:
            self._scanner.look_again()
        return facts, replace(policy, ownership=self._sharing.with_allocated(policy.ownership)), rules

    def _plain_now(self) -> tuple[Device, ...]:
        """Return what is offered at this moment to a scheduler that does not count. Raises: ApiError."""
        try:
            given = self._mig.before_withdrawal()
        except NodeError as error:
            raise ApiError("given-unknown", str(error), retry=Retry.NOW) from error
        return self._others.offer(self._scanner.inventory_holding(given).plain)

    def _used_names(self) -> frozenset[str]:
        """Return the devices that claims were given, under our names or another driver's. Raises: DriverError."""
        inventory = self._scanner.inventory
        every = (*inventory.devices, *inventory.plain)
        free = {device.name for device in self._others.offer(every)}
        given = allocated_names(self._claims, self._node, is_patient=False)
        return given.union(device.name for device in every if device.name not in free)

    def _driver_changed(self) -> None:
        self._must_restart.set()

    def _claim_answered(self, rpc: str, seconds: float, code: str) -> None:
        self._count(rpc, seconds, code)
        if rpc == "unprepare":
            self._others.claim_ended()
        if self._scanner.inventory.waits_for_claims and rpc == "unprepare":
            self._scanner.look_now()

    def _inventory(self) -> Inventory:
        return self._scanner.inventory

    def _listed(self, options: Options, node: NodeIdentity) -> ListedClaims | None:
        if not options.lists_claims:
            return None
        from dra_driver.kube.pages import objects  # noqa: PLC0415 - only where lists are wanted

        listing = partial(objects, self._api, CLAIMS, patience_s=0.0)  # the caller waits for the list
        return ListedClaims(listing, self._api, driver=node.driver, pools=(options.node, node.pool))

    def _role_gained(self) -> None:
        self._publisher.start()
        self._reaper.start()

    def _role_lost(self) -> None:
        self._reaper.stop()
        self._publisher.stop()

    def _open_page(self, address: str) -> tuple[StatusPage | None, Answered]:
        """Return the status page and its counter of calls; without an address neither is made. Raises: DriverError."""
        if not address:
            return None, lambda *_: None
        from dra_driver.agent.status import StatusPage  # noqa: PLC0415 - only where metrics are wanted
        from dra_driver.telemetry.metrics import Metrics  # noqa: PLC0415 - only where metrics are wanted

        metrics = Metrics(self._snapshot)
        return StatusPage(address, metrics=metrics.render, readiness=self._unready), metrics.claim_answered

    def _is_ledger_empty(self) -> bool:
        try:
            return self._ledger.is_empty()
        except DriverError:
            return False

    def _count_claims(self) -> int:
        try:
            return self._ledger.count()
        except DriverError:
            return 0

    def _unready(self) -> tuple[str, ...]:
        reasons = []
        if self._is_serving and not self._server.registered:
            reasons.append(f"not registered with the kubelet {self._server.last_error}".rstrip())
        if self._ledger.problem:
            reasons.append(self._ledger.problem)
        if self._scanner.inventory.waiting_for:
            reasons.append(f"waiting for {self._scanner.inventory.waiting_for}")
        status = self._publisher.status()
        if self._role.is_held and not status.is_published:
            why = " ".join(status.last_error.split())
            reasons.append(f"no slices published yet: {why}" if why else "no slices published yet")
        return tuple(reasons)

    def _snapshot(self) -> Snapshot:
        from dra_driver.telemetry.metrics import Snapshot  # noqa: PLC0415 - only where metrics are wanted

        inventory, status = self._scanner.inventory, self._publisher.status()
        return Snapshot(
            version=__version__,
            vendor=self._hardware.vendor,
            devices=Counter(str(d.type) for d in inventory.offered(with_shares=status.is_sharing)),
            problems=Counter(
                p.code
                for p in (
                    *inventory.problems,
                    *status.problems,
                    *self._geometer.problems,
                    *self._sharing.problems,
                    *self._others.problems(),
                )
            ),
            slice_writes=status.writes,
            prepared_claims=self._count_claims(),
            is_registered=self._server.registered,
            holds_role=self._role.is_held,
            scans=self._scanner.scans,
            scan_seconds=self._scanner.scan_seconds,
            pool_generation=status.generation,
        )
