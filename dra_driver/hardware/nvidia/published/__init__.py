"""The names under which the attributes and capacities of NVIDIA's devices are published."""
