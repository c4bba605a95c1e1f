"""The names that NVIDIA's devices are published with."""
