"""echod: the control plane. Handlers import `echofn`, never this."""

__version__ = "0.1.0"
