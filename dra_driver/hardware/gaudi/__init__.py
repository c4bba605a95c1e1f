"""Intel Gaudi: accelerators read from the kernel's accel class."""
