"""What a job leaves on disk: its directory, its journal, files written whole or not at all."""
