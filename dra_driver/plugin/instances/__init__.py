"""Several agents on one node, as during an upgrade: which of them has the role, and which one leaves last."""
