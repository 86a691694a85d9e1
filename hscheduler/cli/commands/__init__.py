"""The commands of ``hscheduler``."""
