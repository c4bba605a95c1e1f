"""The real components of the cluster lane: pinned by Go modules, built once into a cache outside the tree."""
