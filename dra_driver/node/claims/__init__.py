"""A claim as the node sees it: what was allocated, what its configs ask for, and the plan of what is to be done."""
