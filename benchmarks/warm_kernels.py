"""Imported by a warm supervisor before its job is known: what a large model's processes would find compiled."""

from eps.ml import kernels

kernels.use_for(kernels.MANY_KEYS + 1)
