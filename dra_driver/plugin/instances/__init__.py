"""Several agents on one node, as during an upgrade: which of them holds the role, and which one leaves last."""
