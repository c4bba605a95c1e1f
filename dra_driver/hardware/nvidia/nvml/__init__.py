"""NVML through nvidia-ml-py: the library calls that this driver makes.

In: a path of libnvidia-ml.so.1, handles and NVIDIA's ids. Out: plain values and `NvmlFault`. Every method is one
library call (or the versions of one call, or those needed to describe its result), announced to `mark` before it is
made. Never interprets a value beyond its unit, and never waits: the workers take care of deadlines.

Source: nvml.h and NVIDIA's NVML API reference.
"""
