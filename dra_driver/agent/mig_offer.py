"""MigOffer: how this node's GPUs are offered, with partitions on demand or as they are, and the event that says why.

In: facts, the ledger, which fields the API server keeps. Out: the policy from which the inventory is built, and what is
offered to a scheduler that does not count. Devices that claims hold or were just given stay offered: before anything is
withdrawn, the claims that the ledger does not know are looked up once. A GPU is never changed here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from dra_driver.controller.status import PublisherStatus
from dra_driver.hardware.facts import Facts
from dra_driver.inventory.mig.partitions import MigPolicy, Ownership
from dra_driver.inventory.mig.words import how_offered
from dra_driver.model.errors import DriverError
from dra_driver.model.names import gpu_name, partition_name, replicated_name
from dra_driver.plugin.mig.partition_owners import PartitionOwners
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

NOT_ON_DEMAND = "MigNotOnDemand"


class MigOffer:
    """Judges how MIG is offered.

    `tell` sends an event to the node; `allocated` returns the devices that claims were given.
    """

    def __init__(
        self,
        owners: PartitionOwners,
        *,
        is_dynamic: bool,
        with_all: bool,
        published: Callable[[], PublisherStatus],
        allocated: Callable[[], frozenset[str]],
        tell: Callable[[str, str], None],
    ) -> None:
        self._owners, self._is_dynamic, self._with_all = owners, is_dynamic, with_all
        self._published, self._list_allocated, self._tell = published, allocated, tell
        self._ownership = Ownership()
        self._allocated: frozenset[str] = frozenset()  # as last read, while placements are withdrawn
        self._looked_for: frozenset[str] = frozenset()
        self._is_told = False
        self._said: dict[str, str] = {}
        self.is_unsure = False  # placements would be withdrawn, but which of them claims were given is unknown

    def judge(self, facts: Facts) -> tuple[Facts, MigPolicy]:
        """Return the facts and how MIG is offered.

        While the ledger can't be read, the last known owners stay in force.
        """
        try:
            facts, self._ownership = self._owners.judge(facts)
        except DriverError as error:
            log.warning("cannot determine the owners of partitions", extra=fields(code=error.code, err=str(error)))
        self._look(facts)
        self._ownership = replace(self._ownership, held=self._ownership.held | self._allocated)
        policy = MigPolicy(self._is_dynamic, self._with_all, self._ownership)
        self._say(facts, policy)
        return facts, policy

    def before_withdrawal(self) -> frozenset[str]:
        """Return the devices that claims were given, before placements are withdrawn from a server that does not count.

        Raises: DriverError; then nothing may be withdrawn.
        """
        self._allocated = self._list_allocated()
        if not self._is_told:
            self._is_told = True
            status = self._published()
            self._tell(
                NOT_ON_DEMAND,
                f"GPUs are offered whole, and partitions as they are: API server {status.server} drops shared "
                "counters (feature gate DRAPartitionableDevices)",
            )
        return self._allocated

    def _look(self, facts: Facts) -> None:
        """Find out which devices claims were given, where that matters."""
        withdrawn = self._withdrawn(facts)
        is_pending = any((replicated_name(name) or name) not in _standing(facts) for name in self._allocated)
        self.is_unsure = self.is_unsure and bool(withdrawn)
        if not withdrawn:
            self._looked_for, self._allocated = withdrawn, frozenset()
        elif withdrawn != self._looked_for or is_pending:
            try:
                self._allocated = self._list_allocated()
                self._looked_for, self.is_unsure = withdrawn, False
            except DriverError as error:
                self.is_unsure = True
                log.warning(
                    "cannot determine which devices claims were given", extra=fields(code=error.code, err=str(error))
                )

    def _withdrawn(self, facts: Facts) -> frozenset[str]:
        """Return what is not offered on demand but may have been: single GPUs, or a word for all of them."""
        if not any(gpu.mig_profiles for gpu in facts.gpus):
            return frozenset()
        if not self._is_dynamic:  # an earlier agent may have offered them
            return frozenset(["static"])
        is_counting = self._published().is_counting
        self._is_told &= not is_counting
        foreign = (gpu.pci_address for gpu in facts.gpus if self._ownership.foreign_places(gpu))
        return frozenset(foreign) if is_counting else frozenset(["uncounted", *foreign])

    def _say(self, facts: Facts, policy: MigPolicy) -> None:
        said = {gpu.pci_address: how_offered(gpu, policy) for gpu in facts.gpus if gpu.mig_profiles}
        for address, how in said.items():
            if self._said.get(address) != how:
                log.info("how a GPU is offered", extra=fields(device=address, reason=how))
        self._said = said


def _standing(facts: Facts) -> frozenset[str]:
    """Return the names of the devices that are offered whether or not MIG is on demand."""
    whole = (gpu_name(gpu.pci_address) for gpu in facts.gpus if not gpu.mig_enabled)
    parts = (
        partition_name(gpu.pci_address, p.profile, p.gi_profile_id, p.start)
        for gpu in facts.gpus
        for p in gpu.partitions
    )
    return frozenset([*whole, *parts])
