"""Worlds for the allocator: nodes, slices, classes, claims and pods, the rules that apply, and questions about them."""
