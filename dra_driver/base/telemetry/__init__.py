"""What a process says of itself: logs, metrics, and the server of its status page."""
