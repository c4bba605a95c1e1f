"""Other software that hands out GPUs of this node: device plugins and other versions of this driver."""
