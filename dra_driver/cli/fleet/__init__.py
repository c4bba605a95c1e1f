"""The commands that show a fleet: `devices` of one node, `slices` and `claims` of a cluster, `in-use`."""
