"""How the console and the webhook serve HTTP, with their bounds."""
