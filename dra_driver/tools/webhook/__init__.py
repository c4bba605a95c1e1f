"""The admission webhook: refuses invalid configs, warns of selectors."""
