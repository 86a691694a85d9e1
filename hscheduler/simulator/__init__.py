"""H-scheduler in virtual time: the same state and the same policies, with models in place of jobs."""
