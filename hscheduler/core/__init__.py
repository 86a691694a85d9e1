"""What H-scheduler decides, without I/O, clock, threads or chance."""
