"""Completion of the command line in bash, zsh and fish, and of `kubectl dra` by kubectl itself.

In: the words up to the cursor. Out: candidates. Names come from the shipped profiles, and from the cluster if it
answers within two seconds.
"""
