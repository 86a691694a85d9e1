"""H-scheduler with real jobs on this host: carries out the orders of its state, and reports back what happened."""
