"""GPUs for virtual machines: they are taken from their driver and given back; each write is recorded before it is made.

The writes go to sysfs, and are made by `hardware.passthrough`.
"""
