"""Which claims this node has beyond its ledger: found through the kubelet's report, and one GET for each claim."""
