"""Findings about selectors that compile but cause trouble, with a better expression where there is one."""
