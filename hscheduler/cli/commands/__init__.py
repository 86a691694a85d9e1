"""What the commands of ``hscheduler`` do."""
