"""Objectives of the benchmark of searches: tables of losses by point."""
