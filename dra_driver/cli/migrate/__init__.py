"""`dra-driver migrate`: files in; changed files, a report, and a check of the result on a fleet out."""
