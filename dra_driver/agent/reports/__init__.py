"""What the agent reports beyond its slices: Events about faults, status of claims, condition and labels of the Node."""
