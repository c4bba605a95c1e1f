"""What sharing does to a device: time slices, compute modes and MPS daemons, kept as long as a claim holds the device.

`holders` knows who holds a device; the others know devices by name and UUID and never a claim.
"""
