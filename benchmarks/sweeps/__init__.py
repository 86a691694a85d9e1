"""What elasticity is worth in a sweep: the same points and stopping rule under every policy, and what is possible."""
