"""From a folder to a served version: snapshot, confined discovery, checks, one switch; and again on every save."""
