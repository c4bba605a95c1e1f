"""MIG partitions on this node: those made for claims, those made as declared, and the question whom each belongs to."""
