"""Commands about this node: health, cordons, validation, remediation."""
