"""H-scheduler as a process of its own: its directory, its gRPC face, and the client of that."""
