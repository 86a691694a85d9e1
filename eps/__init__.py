"""Elastic parameter server: the public names."""
