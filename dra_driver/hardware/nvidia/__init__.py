"""NVIDIA: GPUs and MIG partitions through NVML, called in a worker thread with deadlines."""
