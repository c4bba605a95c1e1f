"""GPUs that virtual machines may have: which ones an administrator named, and how they are offered."""
