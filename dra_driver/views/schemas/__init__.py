"""The JSON schemas of the documents that commands write: their parts, and one schema for each kind."""
