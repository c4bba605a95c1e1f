"""The devices that a node can reach, and what is held of them: pools, capacity, counters, taints, node selectors."""
