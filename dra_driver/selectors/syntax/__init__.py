"""From text to a syntax tree that knows the position of every node; macros are expanded."""
