"""Completion of the command line in bash, zsh and fish, and of `kubectl dra` by kubectl itself.

In: the words up to the cursor. Out: candidates. Names come from the shipped profiles and, within two seconds, from the
cluster. If the cluster does not answer in that time, it provides no names.
"""
