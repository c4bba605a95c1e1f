"""The inputs of commands: options, files, profiles and clusters in; selectors, devices, classes and worlds out."""
