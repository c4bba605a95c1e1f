"""What can be observed of NVIDIA GPUs' health: the library's events and readings, the kernel log, the PCI bus."""
