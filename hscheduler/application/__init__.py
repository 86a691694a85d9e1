"""A sweep that is one application of YARN: the scheduler is its master, and the jobs' processes are in its containers.

``orders``, ``inputs`` and ``submit`` are the client's way to the application, ``follow`` shows it; ``am`` is the
application's master, ``ends`` and ``mirror`` keep in the cluster's file system what outlives it.
"""
