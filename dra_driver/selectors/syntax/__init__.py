"""Text in, a syntax tree with the position of every node out; macros are expanded."""
