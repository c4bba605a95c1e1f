"""GPUs for virtual machines: which ones an administrator named, and how they are offered."""
