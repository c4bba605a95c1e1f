"""The commands that show a fleet: `devices` of one node; `slices`, `claims` and `in-use` of a cluster."""
