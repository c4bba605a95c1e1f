"""What claims use of their GPUs, and what it costs."""
