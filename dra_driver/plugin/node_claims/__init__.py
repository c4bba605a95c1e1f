"""The claims of this node that its ledger does not know: the kubelet reports them, and one GET reads each of them."""
