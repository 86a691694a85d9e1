"""Imported by a warm supervisor: compile the kernels of large models before the job is known."""

from eps.ml import kernels

kernels.use_for(kernels.MANY_KEYS + 1)
