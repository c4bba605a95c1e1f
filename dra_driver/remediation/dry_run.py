"""DryRun: logs what a remediation would do, without doing or writing anything.

In: the faults of a node. Out: one log line for each GPU that would be remediated, repeated only when it changes.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from dra_driver.hardware.facts import GpuFacts
from dra_driver.model.errors import DriverError
from dra_driver.model.names import gpu_name
from dra_driver.model.taints import DeviceTaints
from dra_driver.plugin.instances.agent_part import AgentPart
from dra_driver.remediation.action_choice import ActionChoice, choose_action
from dra_driver.remediation.policy import RemediationAction, RemediationPolicy
from dra_driver.remediation.remediation_node import RemediationNode
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.loop import Loop

log = logging.getLogger(__name__)

TURN_SECONDS = 5.0
WOULD = "would-"  # prefix of an action; the result is reported in place of a remediation's stage


class DryRun(AgentPart):
    """The dry run of one node. Any thread may call any method."""

    def __init__(self, node: RemediationNode, policy: RemediationPolicy) -> None:
        self._node, self._policy = node, policy
        self._logged: Mapping[str, str] = {}
        self._counts: Mapping[str, int] = {}
        self._loop = Loop("remediation", self.turn, failure="the dry run of remediation failed")

    def start(self) -> None:
        """Start to log what would be done."""
        self._loop.start()

    def stop(self) -> None:
        """Log nothing any more."""
        self._loop.stop()

    def health_changed(self, taints: DeviceTaints) -> None:
        """Take a turn soon."""
        del taints
        self._loop.wake()

    def claim_ended(self) -> None:
        """Take a turn soon, because the claim may have been the last one of a faulty GPU."""
        self._loop.wake()

    def is_reboot_asked(self) -> bool:
        """Return False, because a dry run requests no reboot."""
        return False

    def counts(self) -> Mapping[str, int]:
        """Return the number of GPUs for which each action would be tried."""
        return self._counts

    def figures(self) -> Mapping[str, Mapping[str, int]]:
        """Return the counts for the metrics."""
        return {"remediations": self._counts}

    def turn(self) -> float:
        """Log what would be done now, unless it was logged before."""
        gpus, faults = self._node.gpus(), self._node.faults()
        would = {gpu.pci_address: (gpu, choose_action(gpu, faults, self._policy, gpus)) for gpu in gpus}
        needed = {address: (gpu, one) for address, (gpu, one) in would.items() if one is not None}
        texts = {address: self._text(gpu, one) for address, (gpu, one) in needed.items()}
        for address, text in texts.items():
            if self._logged.get(address) != text:
                log.warning("remediation, dry run", extra=fields(device=address, reason=text))
        self._logged = texts
        self._counts = Counter(f"{WOULD}{one.action}" for _, one in needed.values())
        return TURN_SECONDS

    def _text(self, gpu: GpuFacts, choice: ActionChoice) -> str:
        verb = {RemediationAction.RESET: "reset", RemediationAction.REBOOT: "ask for a reboot for"}
        peers = f", with {', '.join(map(gpu_name, choice.peers))} drained too" if choice.peers else ""
        text = f"would {verb.get(choice.action, 'run the command for')} {gpu.whole_name}{peers}"
        try:
            claims = self._node.users((gpu.pci_address, *choice.peers))
            clients = self._node.clients(gpu)
        except DriverError as error:
            return f"{text}; its users are not known: {error.message}"
        waits = [f"claim {one}" for one in claims[:5]] + [f"process {one}" for one in clients[:5]]
        return f"{text}, because of {choice.fault.key}" + (f"; would wait for {', '.join(waits)}" if waits else "")
