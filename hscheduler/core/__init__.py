"""Pure decisions of H-scheduler: no I/O, clock, threads or global random state."""
