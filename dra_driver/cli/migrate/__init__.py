"""`dra-driver migrate`: its arguments, the files that it reads and writes, and its report."""
