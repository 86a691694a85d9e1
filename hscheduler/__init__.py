"""H-scheduler, the cluster-level scheduler that resizes jobs: its decisions, and a simulator of them."""
