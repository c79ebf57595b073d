"""The vocabulary: ids, jobs, verdicts. Pure values; no clock, randomness, I/O or logging."""
