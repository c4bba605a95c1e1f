"""The steps of a plan come in; changes on this node go out.

Each step is performed and undone here. Both are idempotent, because they read back the current state first.
"""
