"""Hostile inputs: files, arguments and objects that nobody means well with, and ways to run every command on them."""
