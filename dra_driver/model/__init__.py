"""Shared values: errors, names, limits, quantities, versions, wire types, container edits.

Values, two small questions to the system that every room asks alike (`stamp`, `boot`), and how a process imports
libraries without what it never uses of them (`lean`). Imports nothing of ours and nothing heavy; every other room may
import it.
"""
