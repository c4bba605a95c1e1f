"""Measurements of NVIDIA's GPUs, in rounds that the observing thread makes. Imported only where GPUs are metered."""
