"""What this node would publish, and the settings on which that depends."""
