"""The devices at hand, from slices, simulated profiles, a cluster or this node, and the tree of who holds them."""
