"""Effects: the steps of a plan come in, and changes on this node go out.

The steps are carried out and undone here. Both are idempotent, because they start from the current state of the node.
"""
