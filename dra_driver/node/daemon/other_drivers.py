"""Other drivers: other software that hands out this node's GPUs or holds them, and what may be offered beside it.

While a device plugin or another driver of our name serves the same GPUs, nothing is offered. Devices that claims hold
under names which this driver does not publish are left out. Changes are reported to a listener; `check` looks once a
minute for claims that ended without a report.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from dra_driver.base.errors import DriverError
from dra_driver.base.telemetry.logs import fields
from dra_driver.hardware.facts import Problem
from dra_driver.kube.api import KubeApi, NodeEvents
from dra_driver.node.cdi.store import CdiStore
from dra_driver.node.daemon.options import Options
from dra_driver.node.devices.describing import Device
from dra_driver.node.devices.offering import Inventory
from dra_driver.node.kubelet.registration import SameNameDrivers
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.neighbours.allocations import ForeignClaims, held_under_other_names
from dra_driver.node.neighbours.allocations import problems as renamed_problems
from dra_driver.node.neighbours.device_plugin import DevicePluginWatch
from dra_driver.node.neighbours.node_claims import NodeClaims
from dra_driver.node.neighbours.pod_resources import PodResources
from dra_driver.node.slices.scanner import ChangeListener

log = logging.getLogger(__name__)


class OtherDrivers:
    """The other software on one node.

    The listener is called when the offer may change, and when no other driver of our name is left.
    """

    def __init__(
        self,
        options: Options,
        api: KubeApi,
        ledger: Ledger,
        store: CdiStore,
        *,
        kubelet: PodResources,
        claims: NodeClaims,
        boot_id: str,
        events: NodeEvents,
        listener: ChangeListener,
    ) -> None:
        self._options, self._ledger, self._store, self._events = options, ledger, store, events
        self._boot_id, self._listener = boot_id, listener
        self._renamed: Mapping[str, frozenset[str]] = {}  # devices held under another version's names
        node, driver, folder = options.node, options.driver, options.device_plugins_dir
        changed = self._device_plugin_changed
        self._device_plugin = (
            DevicePluginWatch(kubelet, api, node=node, folder=folder, changed=changed, vendor=options.vendor)
            if folder
            else None
        )
        self._same_name_drivers = SameNameDrivers(
            options.registrar_dir, options.data_dir, driver=driver, changed=self._same_name_driver_changed
        )
        self._claims = claims
        self._foreign = ForeignClaims(
            claims, options.cdi_root, node=node, driver=driver, ledger=ledger, changed=listener.other_drivers_changed
        )

    @property
    def has_same_name_driver(self) -> bool:
        """Return whether another driver is registered under our name."""
        return bool(self._same_name_drivers.reason)

    @property
    def competing_agent(self) -> str:
        """Return which agent of this driver publishes in our place; empty while there is none."""
        return self._same_name_drivers.competing_agent

    @property
    def is_serving(self) -> bool:
        """Return whether other software hands out these GPUs; then nothing is offered."""
        return self.has_same_name_driver or bool(self._device_plugin and self._device_plugin.reason)

    @property
    def is_known(self) -> bool:
        """Return whether every check has had its first answer; before that, nothing may be offered."""
        return self._foreign.is_known and (not self._device_plugin or self._device_plugin.is_known)

    def start(self) -> None:
        """Look for drivers of our name now, and for all other software in threads."""
        self._same_name_drivers.start()
        if self._device_plugin:
            self._device_plugin.start()
        self._foreign.start()

    def stop(self) -> None:
        """End the threads."""
        for watch in (self._same_name_drivers, self._device_plugin, self._foreign):
            if watch:
                watch.stop()

    def check(self) -> None:
        """Check whether claims under another version's names have released devices, so that these are offered again."""
        try:
            self._claims.examine(self._ledger.records())
        except DriverError as error:
            log.warning("cannot read the claims in the ledger", extra=fields(code=error.code, err=str(error)))
        if self._renamed:
            self._listener.other_drivers_changed()

    def claim_ended(self) -> None:
        """Check soon whether an unprepared claim held a device under a foreign name, so that it is offered again."""
        self._foreign.claim_ended()

    def record_other_names(self, inventory: Inventory) -> None:
        """Record which of these devices are held under another driver version's names."""
        before, devices = self._renamed, tuple(inventory.by_name.values())
        try:
            self._renamed = held_under_other_names(
                self._ledger.records(), devices, self._store, driver=self._options.driver, boot_id=self._boot_id
            )
        except DriverError as error:  # the last answer remains valid
            log.warning(
                "cannot determine which devices are held under other names",
                extra=fields(code=error.code, err=str(error)),
            )
        for name in self._renamed.keys() - before.keys():
            log.warning("a device is held under another version's name", extra=fields(device=name))

    def offer(self, devices: Sequence[Device]) -> tuple[Device, ...]:
        """Return the devices that no claim holds under another name."""
        taken = frozenset[str]().union(*self._renamed.values())
        return tuple(device for device in self._foreign.offer(devices) if device.name not in taken)

    def may_hold(self, uid: str) -> bool:
        """Return whether a claim of another driver may still hold devices of this node."""
        return self.has_same_name_driver or self._foreign.may_hold(uid)

    def problems(self) -> tuple[Problem, ...]:
        """Return everything that keeps devices from being offered."""
        plugin = self._device_plugin.problems() if self._device_plugin else ()
        foreign = (*self._foreign.problems(), *self._claims.problems())
        return (*plugin, *self._same_name_drivers.problems(), *foreign, *renamed_problems(self._renamed))

    def _device_plugin_changed(self) -> None:
        self._listener.other_drivers_changed()
        if self._device_plugin and self._device_plugin.reason:
            self._send_event("DevicePluginServesGPUs", self._device_plugin.reason)

    def _same_name_driver_changed(self) -> None:
        self._foreign.check_again()
        self._listener.other_drivers_changed()
        if self._same_name_drivers.reason:
            self._send_event("AnotherDriverRegistered", self._same_name_drivers.reason)
        else:
            self._listener.same_name_drivers_left()

    def _send_event(self, reason: str, why: str) -> None:
        self._events.send(reason, f"{self._options.driver} publishes no device: {why}", "Warning")
