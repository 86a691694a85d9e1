"""H-scheduler on YARN: one application, with the scheduler as its master and the jobs in its containers.

``staged_files`` has what is uploaded, ``submit`` and ``monitor`` are the client, ``am`` is the application master.  The
next attempt restores its state from the scheduler's record (:mod:`hscheduler.record.log`).
"""
