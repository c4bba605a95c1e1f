"""What the commands look at: objects from files, profiles or a cluster, and the rules of its version."""
