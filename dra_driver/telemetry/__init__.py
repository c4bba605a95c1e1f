"""What the agent reports about itself: logs and metrics, with closed sets of keys and names."""
