"""Several agents on one node, as during an upgrade: one of them holds the role, and the last one removes the folder."""
