"""The registry: which version is served, its functions, and the folders of versions on disk."""
