"""What the node has done for which claim, on disk before it is done, so that a kill at any step loses nothing."""
