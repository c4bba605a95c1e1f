"""AMD: GPUs and partitions read from the kernel (KFD, DRM, sysfs)."""
