"""GPUs handed to virtual machines: taken from their driver and given back to it, each write recorded before it."""
