"""Measurements of NVIDIA's GPUs, by the thread that also watches their health. Imported only where GPUs are metered."""
