"""Carrying out the steps of a plan: the contract of a performer, and the run of one claim's steps."""
