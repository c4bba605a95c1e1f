"""Labels of GPU feature discovery, and what devices publish in their place."""
