"""H-scheduler with real jobs on this host: does what its state commands, and says what becomes of it."""
