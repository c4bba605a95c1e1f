"""What the agent says of itself: logs and metrics, under closed sets of keys and names."""
