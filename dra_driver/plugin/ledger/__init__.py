"""What this node has promised, on disk: claims with their steps, effects on devices, and which claim holds what."""
