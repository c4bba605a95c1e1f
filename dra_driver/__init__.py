"""A Kubernetes DRA driver for GPUs. Importing the package is free: rooms are imported by who needs them."""

__version__ = "0.3.0"
