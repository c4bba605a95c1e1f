"""What shows the health of NVIDIA's GPUs: the library's events and readings, and the kernel log."""
