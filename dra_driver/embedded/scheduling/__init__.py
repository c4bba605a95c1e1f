"""The embedded scheduler step and workload controllers: pods in, allocated claims and bound pods out."""
