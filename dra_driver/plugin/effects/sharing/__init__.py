"""The effects of sharing on a device: time slices, compute modes and MPS daemons, as long as claims hold the device.

`holders` knows which claims hold a device; the other modules know devices by name and UUID, and never see a claim.
"""
