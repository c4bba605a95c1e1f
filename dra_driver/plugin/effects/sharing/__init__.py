"""What sharing does to a device: time slices, compute modes and MPS daemons, kept as long as a claim holds the device.

`holders` knows which claims hold a device; the other modules know devices by name and UUID and never see a claim.
"""
