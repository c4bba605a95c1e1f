"""Which claims this node holds beyond its ledger: what the kubelet reports, and one GET for each claim."""
