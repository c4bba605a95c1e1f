"""Doctor: what is wrong on a node or in a cluster, how that is known, and how to correct it.

The evidence is read first (`cluster_evidence`, `node_evidence`); checks are pure functions from evidence to findings.
"""
