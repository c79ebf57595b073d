"""Decisions as functions of values: when a rule is due, what becomes of a backlog, how long to wait. Pure."""
