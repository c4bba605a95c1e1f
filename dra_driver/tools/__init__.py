"""What people run: one folder for each command, which computes and draws."""
