"""The inputs of an evaluation of selectors: devices, selectors, a version of Kubernetes and its gates.

In: a fleet and queries. Out: `SelectorInputs`, with the engine for the version.
"""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.selectors.checking.declarations import declare
from dra_driver.selectors.engine import Environment
from dra_driver.selectors.kubernetes_engine import KubernetesEngine
from dra_driver.views.fleet.devices import Fleet
from dra_driver.views.verdicts.queries import Query


@dataclass(frozen=True, slots=True)
class SelectorInputs:
    """The inputs of a question about selectors."""

    fleet: Fleet
    queries: list[Query]
    kubernetes: str
    gates: dict[str, bool]
    environment: Environment

    @property
    def verdicts(self) -> str:
        """Return "exact" if recorded verdicts of this version exist, else "derived"."""
        return declare(self.kubernetes, self.gates, self.environment).verdicts

    def engine(self) -> KubernetesEngine:
        """Make the engine for this version and these gates."""
        return KubernetesEngine(self.kubernetes, gates=self.gates)
