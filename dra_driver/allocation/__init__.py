"""Allocation offline: whether claims would fit, where, and why not, with the scheduler's own answers.

In: nodes, slices, classes and claims as wire dicts. Out: allocations, or refusals with reasons. Pure and deterministic.
"""

from __future__ import annotations

from dra_driver.allocation.allocator import Allocator, PodAllocator
from dra_driver.allocation.batch import simulate_batch_line
from dra_driver.allocation.outcome import Category, NodeOutcome
from dra_driver.allocation.rules import Features

__all__ = ["Allocator", "Category", "Features", "NodeOutcome", "PodAllocator", "simulate_batch_line"]
