"""Inventory: the devices that this node offers, as names, attributes and capacities. Pure.

In: `Facts`. Out: an `Inventory` of `Device`s. `attributes.py` is the one table of every published name. Nothing here
knows about slices, claims or CDI.
"""
