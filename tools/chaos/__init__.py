"""Chaos tests: random events hit the processes of a real job; then the job is judged."""
