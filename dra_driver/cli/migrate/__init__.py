"""`dra-driver migrate`: files in; changed files, a report, and the check of the result on a fleet out."""
