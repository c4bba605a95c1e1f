"""From text to a syntax tree that has the position of every node; macros are expanded."""
