"""Speed and memory against the budgets: `make bench`. Real processes, real sockets; nothing here is a test."""
