"""Chaos: events that hit the real processes of a real job, drawn from a seed, and the judgement of what became of it."""
