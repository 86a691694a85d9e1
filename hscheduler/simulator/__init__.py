"""H-scheduler in virtual time: the real scheduler and policies, with models in place of jobs."""
