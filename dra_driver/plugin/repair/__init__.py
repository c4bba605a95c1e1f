"""Work beside the kubelet's calls: repairs after crashes, the removal of leftovers, the recovery of a lost ledger."""
