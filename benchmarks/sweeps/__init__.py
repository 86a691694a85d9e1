"""What elasticity is worth in a sweep: fixed sizes, resizing policies and Ray Tune on the same work."""
