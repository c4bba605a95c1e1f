"""Health on this node: cordons, GPUs declared gone, and what the agent has found."""
