"""MIG partitions on this node: made and destroyed for claims, made as declared, and which of them this driver owns."""
