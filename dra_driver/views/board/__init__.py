"""The board, which holds the objects of a fleet that the console shows, and the pages that are made from it."""
