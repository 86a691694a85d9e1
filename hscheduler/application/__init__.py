"""H-scheduler on YARN: one application, whose master is the scheduler; the jobs' processes are in its containers.

``orders`` is what travels there, ``submit`` and ``follow`` are the client's side, ``am`` is the application's master.
What the next attempt of it needs is its scheduler's record (:mod:`hscheduler.record.log`).
"""
