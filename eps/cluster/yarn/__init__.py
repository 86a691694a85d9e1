"""Hadoop YARN behind plain values.

``types`` and ``facade`` define the interfaces to YARN.  ``allocation`` decides about an application master's containers
(pure).  ``hadoop`` implements the interfaces with Hadoop's own clients; no Java object leaves it.
"""
