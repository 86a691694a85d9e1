"""Models, update rules, batches, reproducible sums and metrics: no I/O but reading a user's model file."""
