"""Other software that hands out GPUs of this node: device plugins, NVIDIA's driver, other versions of this driver."""
