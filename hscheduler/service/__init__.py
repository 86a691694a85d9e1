"""H-scheduler as a service: its directory, its gRPC server, and the client."""
