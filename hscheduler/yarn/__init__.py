"""H-scheduler next to a YARN ResourceManager: reads snapshots from the plugin there, and returns preemption plans."""
