"""Inventory: the devices that this node offers, as names, attributes and capacities. Pure.

In: `Facts`. Out: an `Inventory` of `Device`s. The published names are in the tables of the vendors. Nothing here knows
about slices, claims or CDI.
"""
