"""Hadoop YARN behind plain values: types, the interfaces to it, and what an application master decides.

``types`` and ``facade`` say what YARN is to EPS, ``allocation`` decides (pure), ``bridge`` starts the Java virtual
machine and ``hadoop`` is the implementation with Hadoop's own clients.  No Java object leaves ``hadoop``.
"""
