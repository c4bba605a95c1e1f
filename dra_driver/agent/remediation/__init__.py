"""The agent's side of remediation: who holds a GPU, how a reset is done and proven, and what is reported."""
