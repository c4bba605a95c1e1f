"""`dra-driver slices`, `claims`, `devices`, `in-use`: the fleet as a tree."""
