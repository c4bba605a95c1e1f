"""Outcomes: the allocator's answer for a pod's claims on one node.

Out: the closed list of categories, the error that ends an attempt, and the `NodeOutcome` of a node.

Source: Kubernetes' structured allocator returns results, nothing, or an error; all errors but one end the pod's
scheduling on every node.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dra_driver.model.wire import Wire


class Category(StrEnum):
    """Why an attempt ended as it did."""

    NONE = "none"
    NO_FIT = "no-fit"
    CEL_COMPILE_ERROR = "cel-compile-error"
    CEL_RUNTIME_ERROR = "cel-runtime-error"
    UNKNOWN_CLASS = "unknown-class"
    FEATURE_DISABLED = "feature-disabled"
    TOO_MANY_RESULTS = "too-many-results"
    INCOMPLETE_POOL_ALL = "incomplete-pool-all"
    INVALID_POOL_ALL = "invalid-pool-all"
    INVALID_POOL = "invalid-pool"
    ALL_CONSTRAINT_UNSATISFIED = "all-constraint-unsatisfied"
    BAD_CAPACITY = "bad-capacity"
    NOT_JUDGED = "not-judged"  # it is not known what Kubernetes itself would answer
    UNSUPPORTED = "unsupported"  # a request that the API server would refuse
    UNDECIDED = "undecided"  # our own limit: the search was abandoned

    @property
    def is_node_local(self) -> bool:
        """Whether other nodes are still tried; any other error ends the pod's scheduling."""
        return self in {Category.NONE, Category.NO_FIT, Category.INVALID_POOL}


class AllocatorError(Exception):
    """An error of the allocator, with Kubernetes' text."""

    def __init__(self, category: Category, text: str) -> None:
        super().__init__(text)
        self.category = category
        self.text = text


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """The allocator's answer for one node.

    `results` holds one AllocationResult per claim, or is None. `steps` is the number of placements that the scheduler
    itself would try. `seconds` is a rough estimate of the time it would take, for comparison with its limit per node.
    """

    category: Category
    results: list[Wire] | None = None
    error: str | None = None
    others_possible: bool = False  # the order of Go maps decides, and this is only one possible outcome
    steps: int = 0
    seconds: float = 0.0
    is_lower_bound: bool = False  # the search was cut short because nothing can fit; the scheduler tries more steps

    @property
    def ok(self) -> bool:
        """Whether everything was allocated."""
        return self.results is not None

    @property
    def times_out(self) -> bool:
        """Whether the scheduler would give up before it reaches this answer.

        Source: Kubernetes gate DRASchedulerFilterTimeout, default 10 s per node.
        """
        return self.seconds > FILTER_TIMEOUT_SECONDS


FILTER_TIMEOUT_SECONDS = 10.0
