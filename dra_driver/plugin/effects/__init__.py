"""The steps of a plan in, changes on this node out.

Each step is performed and undone here, idempotent by reading back.
"""
