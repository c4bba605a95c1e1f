"""What compiles but hurts: findings, and a better expression where there is one."""
