"""GPUs that virtual machines may have, as the agent sees them: named, away, and checked when they come back."""
