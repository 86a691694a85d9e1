"""Tables: files that EPS reads and writes, with their keys; environment variables; names of extras.

A row may be added freely.  Removing or changing one breaks scripts: say so in CHANGELOG.md.

In the shape of a JSON document a dict holds the keys that have to be there, beside any others; a list of one shape says
what every element is, and that there is one; a tuple says what a row begins with; anything else is a type.  Where a
``float`` is expected a whole number will do.
"""

from __future__ import annotations

from typing import Any

Seconds = float | None
SHA256_DIGITS = 64

#: A change of size, in the report, in the status and as the Python API returns it.
CHANGE = {
    "plan_id": int,
    "operation": str,
    "asked": int | str,
    "text": str,
    "asked_by": str,
    "phase": str,
    "reason": str,
    "names": list,
    "added": list,
    "removed": list,
    "committed_clock": int | None,
    "bytes_moved": int,
    "pause_s": float,
    "slowdown_s": float,
    "seconds": dict,
}
CHECKPOINTS = {
    "complete": int,
    "skipped": int,
    "failed": int,
    "latest_clock": int | None,
    "error": str,
    "size_bytes": int,
    "seconds": float,
}
#: ``eps run --report``, ``job.wait()``, ``eps.run()``; of a classifier with test data that was asked for a change.
JOB_REPORT: dict[str, Any] = {
    "name": str,
    "state": str,
    "reason": str,
    "clock": int,
    "metrics": {"train_loss": float, "test": {"accuracy": float, "f1": float}},
    "history": [{"clock": int, "loss": float, "seconds": float}],
    "model_sha256": str,
    "changes": [CHANGE],
    "losses": list,
    "went_back": list,
    "evictions": {"warned": int, "drained": int, "late": int, "lost": int},
    "checkpoints": CHECKPOINTS,
    "ledger": {"expected": int, "applied": int, "lost": int, "applied_twice": int, "duplicates_refused": int},
    "iteration_seconds": {"p50": float, "p99": float, "total": float},
    "elapsed_s": float,
    "membership": [{"version": int, "from_clock": int, "workers": {"worker-1": [int]}, "servers": {"server-1": [int]}}],
    "settings": dict,
}
#: A clock at which the test data was evaluated has its metrics, too.
EVALUATED = {"clock": int, "loss": float, "test_loss": float, "accuracy": float, "f1": float}
#: Of a regression.
REGRESSION_METRICS = {"rmse": float, "mae": float}
#: ``eps run --folds K --report``.
FOLDS_REPORT: dict[str, Any] = {
    "name": str,
    "state": str,
    "reason": str,
    "clock": int,
    "metrics": {"train_loss": float, "test": {"accuracy": float}, "test_std": {"accuracy": float}},
    "ledger": {"expected": int, "applied": int, "lost": int, "applied_twice": int},
    "folds": [{"name": str, "state": str, "metrics": {"train_loss": float, "test": {"accuracy": float}}}],
}
#: ``eps status --json`` and ``job.status()``; of a job that runs and of one that has ended.
STATUS: dict[str, Any] = {
    "name": str,
    "state": str,
    "reason": str,
    "clock": int,
    "iterations": int,
    "workers": int,
    "servers": int,
    "membership_version": int,
    "members": list,
    "plan": dict | None,
    "queued": list,
    "changes": list,
    "losses": list,
    "went_back": list,
    "evictions": dict,
    "checkpoints": CHECKPOINTS,
    "loss": float | None,
    "metrics": dict,
    "iteration_s": float,
    "eta_s": float,
    "elapsed_s": float,
}
#: One that runs says who its members are; not pinned is where they listen.
LIVE_STATUS: dict[str, Any] = {
    **STATUS,
    "members": [{"name": str, "role": str, "container": str, "pid": int, "holds": list}],
    "loss": float,
}
#: ``eps list --json``.
LISTED = [
    {
        "name": str,
        "state": str,
        "reason": str,
        "clock": int,
        "iterations": int,
        "loss": float | None,
        "metrics": dict,
        "workers": int,
        "servers": int,
        "started_s": float,
    }
]
#: How a job ends, or is, by the reports and the status.
JOB_STATES = {"starting", "running", "finished", "failed", "killed"}
#: ``eps predict --json``.
PREDICTED = {"rows": int, "metrics": {"accuracy": float}}

#: ``hscheduler sweep --report``, ``hscheduler.sweep()`` and a service's report; of a sweep that searches learning_rate.
SWEEP_REPORT: dict[str, Any] = {
    "policy": str,
    "metric": str,
    "direction": str,
    "makespan_s": float,
    "end_s": float,
    "down": list,
    "spec": {"cluster": dict, "sweep": dict, "space": dict, "job": dict},
    "best": {"job_id": str, "loss": float, "metric": str, "point": {"learning_rate": float}},
    "completed": int,
    "phases": {"finished": int, "killed": int, "failed": int},
    "summary": {
        "queueing_mean_s": Seconds,
        "queueing_median_s": Seconds,
        "first_iteration_median_s": Seconds,
        "first_iteration_max_s": Seconds,
        "early_feedback_mean_s": Seconds,
        "early_feedback_median_s": Seconds,
        "early_feedback_max_s": Seconds,
        "resizing_share": float | None,
        "changing_share": float | None,
    },
    "utilisation": float,
    "stop": str,
    "iterations_trained": int,
    "overshoot": int,
    "useful_share": float,
    "waiting_share": float,
    "idle_share": float,
    "container_s": {"computing": float, "waiting": float, "idle": float},
    # Seconds, value, trial.
    "anytime": [(float, float, str)],
    "target": dict | None,
    "time_to_target_s": Seconds,
    "regret": float | None,
    "resources": {"leaked": int},
    "trials": [
        {
            "job_id": str,
            "name": str,
            "point": {"learning_rate": float},
            "phase": str,
            "why": str,
            "attempts": [
                {"job_id": str, "phase": str, "why": str, "started_s": Seconds, "finished_s": Seconds},
            ],
            "arrived_s": float,
            "started_s": float,
            "first_iteration_s": float,
            "early_feedback_s": float,
            "finished_s": float,
            "feedback": float,
            "value": float | None,
            "loss": float | None,
            "iterations": int,
            # Seconds, workers, servers; and seconds, iteration, loss.
            "containers": [(float, int, int)],
            "curve": [(float, int, float)],
            "values": list,
            "rungs": list,
            "pauses": int,
            "rested_s": float,
            "overshoot": int,
            "container_s": float,
            # Seconds, containers.
            "computing": [(float, float)],
            "resizes": int,
            "resize_pause_s": float,
            "restarts": int,
        }
    ],
    "cluster": {"history": list},
    "decisions": [{"at_s": float, "sentence": str, "jobs": list, "plan": list}],
}
#: ``hscheduler simulate --report`` of one policy; of several it is a dict of such, by policy.
SIMULATED_REPORT = {**SWEEP_REPORT, "trials": [{**SWEEP_REPORT["trials"][0], "curve": list}]}
#: ``hscheduler compare --report``.
COMPARISON: dict[str, Any] = {
    "policies": {"elastic": SWEEP_REPORT, "static": SWEEP_REPORT},
    "makespan_over": {"of": str, "elastic": float, "static": float},
    "begins_with": {"elastic": str, "static": str},
}
TRIAL_PHASES = {"finished", "killed", "failed"}
#: ``hscheduler results --csv``: these columns, then one for each setting that was searched.
RESULT_COLUMNS = (
    "policy", "job_id", "name", "phase", "loss", "latest", "feedback", "iterations", "arrived_s", "started_s",
    "first_iteration_s", "early_feedback_s", "finished_s", "resize_pause_s", "restarts", "why",
)  # fmt: skip
#: A job in ``hscheduler jobs --json`` and as ``SchedulerClient.job()`` returns it.
SERVICE_JOB: dict[str, Any] = {
    "job_id": str,
    "sweep": str,
    "name": str,
    "point": dict,
    "phase": str,
    "why": str,
    "is_over": bool,
    "metric": str,
    "value": float | None,
    "loss": float | None,
    "feedback": float | None,
    "iteration": int,
    "iterations": int,
    "workers": int,
    "servers": int,
}
SERVICE_JOBS: dict[str, Any] = {
    "scheduler": {"policy": str, "used_vcores": int, "vcores": int},
    "jobs": [SERVICE_JOB],
}

#: Every key of a sweep's file, with a value that it takes.
SWEEP_FILE: dict[str, dict[str, Any]] = {
    "cluster": {
        "nodes": 2,
        "vcores": 3,
        "memory": "12GiB",
        "container_vcores": 1,
        "container_memory": "2048MiB",
        "master_container": True,
    },
    "sweep": {
        "trials": 3,
        "algorithm": "random",
        "seed": 3,
        "parallelism": 2,
        "arrival": "poisson:0.1s",
        "metric": "accuracy",
        "direction": "maximize",
        "final_test": "rows.svm",
        "feedback_iteration": 5,
        "threshold": 2,
        "stop": "threshold",
        "eta": 4,
        "grace_iterations": 5,
        "max_iterations": 20,
        "kill_restart_s": 1.5,
        "retries": 0,
        "trial_timeout_s": 60.0,
    },
    "space": {
        "learning_rate": {"loguniform": [0.01, 1]},
        "l1": {"uniform": [0, 0.001]},
        "l2": {"choice": [0, 0.0001]},
        "seed": {"randint": [0, 5]},
        "eval_every": {"quniform": [1, 9, 2]},
    },
    # Beside these, whatever a job's file takes.
    "job": {
        "data": "rows.svm",
        "model": "softmax",
        "test": 0.25,
        "workers": 1,
        "servers": 1,
        "iterations": 20,
    },
}
#: What else some of these keys take.
SWEEP_WORDS = {
    "algorithm": ("tpe", "random", "optuna"),
    "arrival": ("burst", "poisson:4s", "poisson:2.5s"),
    "metric": ("loss", "test_loss", "accuracy"),
    "direction": ("minimize", "maximize"),
    "stop": ("none", "threshold", "median", "sha", "asha"),
}

#: An exported model: arrays of these names, and how it describes itself in ``__meta__`` (JSON in UTF-8).
MODEL_ARRAYS = {"weights": ("float32", (5, 3)), "intercept": ("float32", (3,))}
MODEL_META: dict[str, Any] = {
    "version": int,
    "model": str,
    "options": dict,
    "intercept": bool,
    "num_features": int,
    "num_outputs": int,
    "classes": [int],
    "reading": dict,
    "normalizer": list,
    "target_scale": float,
    # Names and shapes in the order that model_sha256 counts them.
    "tensors": [(str, list)],
}

EXTRAS = {"data", "sweep", "fast", "yarn", "hdfs", "docker", "tls", "optuna", "tensorboard", "mlflow"}
PROGRAMS = {"eps": "eps.cli:main", "hscheduler": "hscheduler.cli:main"}
#: What the environment says; each is tested by what it does.
ENVIRONMENT = ("EPS_HOME", "HADOOP_CONF_DIR", "DOCKER_HOST", "EPS_HDFS_TOKEN", "EPS_HDFS_PATIENCE_S")
