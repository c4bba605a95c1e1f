"""GPUs that virtual machines may have: which an administrator named, and how they are offered."""
