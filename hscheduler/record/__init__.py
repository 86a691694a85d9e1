"""What is kept of a scheduler, so that the next one goes on where it was."""
