"""How the agent takes part in the remediation of its GPUs: who holds them, how a reset is proven, what is reported."""
