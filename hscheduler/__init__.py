"""H-scheduler, the cluster-level scheduler that resizes jobs; not part of this release."""
