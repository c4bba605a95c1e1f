"""GPUs handed to virtual machines: taken from their driver and given back, each write recorded before it is made."""
