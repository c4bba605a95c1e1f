"""`dra-driver cel`: judge, explain and mend selectors. `group` is the table of its commands, one module each.

`judge` compiles and evaluates for all of them, `report` draws what they found.
"""
