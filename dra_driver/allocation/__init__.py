"""Allocation offline: whether claims would fit, where, and why not, with the scheduler's own answers.

In: nodes, slices, classes and claims as wire dicts. Out: allocations, or refusals with reasons. Pure and deterministic.
"""
