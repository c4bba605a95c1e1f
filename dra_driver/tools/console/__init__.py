"""The console: fleet, claims and selectors in a browser."""
