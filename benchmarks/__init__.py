"""Speed and memory compared with the budgets: `make bench`. Real processes and real sockets; nothing here is a test."""
