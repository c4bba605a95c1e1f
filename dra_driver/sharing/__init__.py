"""Plan steps in, settings on shared devices out: time slices, MPS daemons, compute modes.

Every effect is idempotent by reading back. Knows devices by name and UUID and what is wanted of them; never a claim,
never who holds what (that is the ledger's).
"""
