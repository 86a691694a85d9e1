"""The experiments of the paper (EPS §2.3, §6, §7): real at a size that fits two cores, and simulated at its own."""
