"""Intel: GPUs read from DRM and sysfs."""
