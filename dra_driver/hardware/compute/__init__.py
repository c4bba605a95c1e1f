"""Programs that show whether a device computes. Each runs in a short-lived process of its own and says what it found.

A vendor with the ability `port.ComputeTested` chooses the program. All but `program` runs only in such a process,
which imports nothing else of this package: `cuda_child` uses NVIDIA's libcuda.so.1, `simulated_child` plays it.
"""
