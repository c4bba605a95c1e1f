"""The words of the house: errors, names, limits, quantities, versions, wire types, container edits.

Pure values. Imports nothing of ours and nothing heavy; every other room may import it.
"""
