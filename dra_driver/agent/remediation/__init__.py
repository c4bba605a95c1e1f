"""The agent's side of remediation: who holds a GPU, how a reset is done and verified, and what is reported."""
