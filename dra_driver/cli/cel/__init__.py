"""`dra-driver cel`: evaluate, explain and improve selectors. `group` is the table of its commands, one module each.

`judge` compiles and evaluates the selectors for all commands; `report` prints the results.
"""
