"""The board, which holds what the console shows of a fleet: its objects as they are now; and pages made from it."""
