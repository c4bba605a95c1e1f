"""A cluster on one machine: an API server, a kubelet, a scheduler step, and the examples that run on them."""
