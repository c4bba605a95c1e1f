"""`dra-driver cel`: selectors tried, explained and linted offline."""
