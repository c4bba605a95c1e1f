"""A client of the API server: requests, pages, watches, leases, Events, credentials."""
