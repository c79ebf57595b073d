"""A node: its roles as tasks of one process and loop, the embedded server, the lock on its state folder."""
