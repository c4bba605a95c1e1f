"""Completion of the command line in bash, zsh and fish, and of `kubectl dra` by kubectl itself: scripts and answers."""
