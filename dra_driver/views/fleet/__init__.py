"""Fleets: the devices of slices, simulated profiles, a cluster or this node, and the claims that hold them."""
