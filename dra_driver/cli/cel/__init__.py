"""`dra-driver cel`: evaluate, explain and improve selectors.

`group` is the table of its commands, one module each; `report` prints what they have in common.
"""
