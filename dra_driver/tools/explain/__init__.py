"""`dra-driver explain` and `simulate`: where claims and pods fit, and what a change would do."""
