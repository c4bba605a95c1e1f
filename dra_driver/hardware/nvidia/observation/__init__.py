"""Observation of NVIDIA's GPUs while the library is open: one thread for their health and their measurements."""
