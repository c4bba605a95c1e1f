"""Classic mistakes in selectors, each with what to write instead.

In: an expression, and the names and values that devices have. Out: sentences that say what is wrong, and the expression
with all of it put right. Nothing is promised about an expression that no rule here knows.
"""
