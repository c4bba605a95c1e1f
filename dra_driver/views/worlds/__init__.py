"""Worlds for the allocator: nodes, slices, classes, claims and pods, whose rules apply, and what is asked of them."""
