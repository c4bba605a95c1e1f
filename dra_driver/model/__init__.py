"""Shared values: errors, names, limits, quantities, versions, wire types, container edits.

Everything here is a pure value. This room imports no other room and nothing heavy; every other room may import it.
"""
