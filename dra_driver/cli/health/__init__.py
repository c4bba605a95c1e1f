"""The commands about the health of this node's GPUs: faults, cordons, tests and remediations."""
