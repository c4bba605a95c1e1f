"""Programs that test whether a device computes. Each runs in a short-lived process of its own and reports its result.

A vendor with the ability `port.ComputeTested` chooses the program. All modules but `program` run only in such a
process, which imports nothing else of this package: `cuda_child` uses NVIDIA's libcuda.so.1, `simulated_child`
simulates a test.
"""
