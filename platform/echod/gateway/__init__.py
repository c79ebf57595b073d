"""The gateway: HTTP in, jobs out; records, metrics and pages. It never loads user code."""
