"""The pump: promotes due work, mints due occurrences, recovers expired leases, by the server's clock."""
