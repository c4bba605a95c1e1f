"""CDI files: their content, and the folder in which they are kept."""
