"""The record of a scheduler, from which the next one resumes."""
