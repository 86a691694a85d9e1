"""Chaos: events that hit the real processes of a real job, drawn from a seed, and what is said of the job then."""
