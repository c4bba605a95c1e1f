"""The status page of the agent: what it shows, who may read it, and its options."""
