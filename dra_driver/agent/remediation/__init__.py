"""How the agent joins the remediation of its GPUs: who holds them, what is proven after a reset, what is reported."""
