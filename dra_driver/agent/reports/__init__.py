"""What the agent reports beyond its slices: Events about faults, conditions of claims, features of the node."""
