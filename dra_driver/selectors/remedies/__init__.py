"""Common mistakes in selectors, each with what to write instead.

In: an expression, and the names and values that devices have. Out: sentences that say what is wrong, and the expression
with all mistakes corrected. An expression without a known mistake may still be wrong.
"""
