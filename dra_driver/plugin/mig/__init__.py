"""MIG partitions on this node: those made for claims, those made as declared, and the owners of all of them."""
