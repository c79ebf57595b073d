"""Our figures on this machine: `make bench`, or `python -m bench drain dispatch late cron crash idle memory growth`."""
