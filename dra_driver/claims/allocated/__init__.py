"""An allocated ResourceClaim: its values, how it is read from the API server and how the ledger records it.

`claim_on_node` joins it with the devices of this node; everything that is planned or reported starts there.
"""
