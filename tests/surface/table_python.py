"""Tables: what can be called from Python.

A row may be added freely, and so may a parameter with a default.  Removing or changing one breaks scripts: say so in
CHANGELOG.md.
"""

from __future__ import annotations

#: Modules that scripts import; the tests of this folder import no others of ours.
MODULES = {
    "eps": {"Job", "JobSpec", "__version__", "load", "run"},
    "eps.cli": {"main"},
    "eps.errors": {
        "ConfigError", "DataError", "DeadlineError", "EpsError", "JobExistsError", "JobFinishedError",
        "JobNotFoundError", "PeerUnavailableError", "PlanError", "ResourceError", "StorageError", "StoppedEarlyError",
        "TrainingError", "UnknownMemberError",
    },
    "hscheduler": {"HTrials", "SweepReport", "report", "sweep"},
    "hscheduler.cli": {"main"},
    "hscheduler.service.client": {"SchedulerClient"},
}  # fmt: skip

#: What each is called with: names, order and defaults.
SIGNATURES = {
    "eps.run": "**settings",
    "eps.load": "path, *, code=''",
    "eps.Job.start": "spec=None, *, name='', detach=False, **settings",
    "eps.Job.find": "name",
    "eps.Job.attach": "name",
    "eps.Job.resume": "name, *, workers=0, servers=0, reliable=0, python='', detach=False",
    "eps.Job.status": "",
    "eps.Job.history": "",
    "eps.Job.wait": "timeout_s=None",
    "eps.Job.report": "",
    "eps.Job.export": "path",
    "eps.Job.add_workers": "count, *, wait=True, request_id=''",
    "eps.Job.add_servers": "count, *, wait=True, request_id=''",
    "eps.Job.remove_workers": "count_or_names, *, wait=True, request_id=''",
    "eps.Job.remove_servers": "count_or_names, *, wait=True, request_id=''",
    "eps.Job.scale": "*, workers=0, servers=0, reliable=0, transient=0, containers=(), wait=True, request_id=''",
    "eps.Job.dry_run": "operation, count_or_names",
    "eps.Job.plan": "plan_id",
    "eps.Job.cancel": "plan_id=None",
    "eps.Job.kill": "",
    "eps.Job.close": "",
    "eps.JobSpec.from_dict": "values",
    "hscheduler.sweep": (
        "spec, *, policy='elastic', stop=None, trials=None, seed=None, study=None, suggest=None, objective=None, "
        "on_event=None, quiet=True, report=None, page=None, name=None"
    ),
    "hscheduler.report": "*, iteration=None, **metrics",
    "hscheduler.SweepReport.write_page": "path",
    "hscheduler.HTrials": (
        "scheduler=None, parallelism=4, *, cluster=None, settings=None, threshold=None, direction=None, "
        "points_to_evaluate=(), retries=1, processes=False, state=None, stop='', eta=3, grace_iterations=0, "
        "max_iterations=0, stop_diverged=True"
    ),
    "hscheduler.service.client.SchedulerClient": "directory, address='', give_up_s=30.0",
    "hscheduler.service.client.SchedulerClient.submit_job": "job_id, spec, sweep='', point=None",
    "hscheduler.service.client.SchedulerClient.wait": "submission, timeout_s=None",
    "hscheduler.service.client.SchedulerClient.job": "job_id",
    "hscheduler.service.client.SchedulerClient.jobs": "sweep=''",
    "hscheduler.service.client.SchedulerClient.cancel": "job_id, why",
    "hscheduler.service.client.SchedulerClient.save_model": "job_id, path",
    "hscheduler.service.client.SchedulerClient.run_sweep": "tables, name=''",
    "hscheduler.service.client.SchedulerClient.report": "sweep='', wait_s=0.0",
    "hscheduler.service.client.SchedulerClient.watch": "sweep=''",
    "hscheduler.service.client.SchedulerClient.close": "",
}
PROPERTIES = ("eps.Job.name", "eps.Job.running", "hscheduler.SweepReport.best_point")

#: Errors, and what else they can be caught as.
ERRORS = {
    "EpsError": (Exception,),
    "ConfigError": (ValueError,),
    "DataError": (ValueError,),
    "PlanError": (),
    "StorageError": (OSError,),
    "ResourceError": (),
    "TrainingError": (),
    "DeadlineError": (TimeoutError,),
    "PeerUnavailableError": (ConnectionError,),
    "JobNotFoundError": (LookupError,),
}
#: Errors -> the more general ones that they are.
KINDS_OF = {
    "JobExistsError": "ConfigError",
    "UnknownMemberError": "PlanError",
    "JobFinishedError": "PlanError",
    "StoppedEarlyError": "TrainingError",
}
