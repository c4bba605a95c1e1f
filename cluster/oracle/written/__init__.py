"""Worlds written by hand, in modules by the rule that they are about."""
