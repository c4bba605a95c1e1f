"""Inventory: the devices that this node offers, as names, attributes, capacities. Pure.

Enters: `Facts`. Leaves: `Inventory` of `Device`s. `attributes.py` is the one table of every published name. Knows
nothing of slices, claims or CDI.
"""
