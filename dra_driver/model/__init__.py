"""Shared values: errors, names, limits, quantities, versions, wire types, container edits.

Values, and two small questions to the system that every room asks alike (`stamp`, `boot`). Imports nothing of ours and
nothing heavy; every other room may import it.
"""
