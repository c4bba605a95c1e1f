"""What commands are given: options, files, profiles and clusters in; selectors, devices, classes and worlds out."""
