"""Shared values: errors, names, limits, quantities, versions, wire types, container edits.

Besides values, this room has facts of the system that every room reads in the same way (`stamp`, `machine`). It imports
no other room and nothing large; every other room may import it.
"""
