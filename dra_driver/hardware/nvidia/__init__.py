"""NVIDIA: GPUs and MIG devices through NVML, sysfs and procfs.

In: roots. Out: `Facts`, fingerprints and container edits, by way of the hardware port. Only `queries` imports pynvml,
and only once there is hardware to ask about.
"""
