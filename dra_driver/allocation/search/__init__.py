"""The search for devices on one node: candidates in order, what is placed, and where the search may stop."""
