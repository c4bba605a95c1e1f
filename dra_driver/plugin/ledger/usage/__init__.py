"""What the ledger records so that hours add up: a clock, the rows of older agents, the totals of claims.

In: an open transaction. Out: rows; times that only go forward.
"""
