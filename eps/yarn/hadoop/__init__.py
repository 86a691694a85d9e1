"""YARN and HDFS with Hadoop's own Java clients: the implementation of ``eps/cluster/yarn/facade.py``.  L2.

``client`` submits and asks, ``master`` is an application master's side, ``files`` a file system of the cluster and
``tokens`` what proves who somebody is.  All of them need :func:`eps.hadoop.bridge.start_jvm` first, which
:class:`~eps.hadoop.session.HadoopSession` does.
"""
