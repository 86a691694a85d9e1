"""Results in the text of the paper; values that only its pictures show are missing.

Every value names its section.  Speed-ups of "93 %" are kept as ratios: 1.93.
"""

from __future__ import annotations

#: The eight models in the paper's order, by their names in EPS.
MODELS = ("svm", "logistic", "linear", "dnn", "lasso", "ridge", "softmax", "robust")
LABELS = {
    "svm": "SVM",
    "logistic": "LR",
    "linear": "Linear",
    "dnn": "DNN",
    "lasso": "Lasso",
    "ridge": "Ridge",
    "softmax": "Softmax",
    "robust": "Robust",
}

#: §7.1: training time of the others over that of EPS ("EPS accelerates the training speed by 1.13x, 1.5x, 74%, ...").
MAKESPAN_OVER_ELASTIC = {
    "static": dict(zip(MODELS, (2.13, 2.5, 1.74, 1.93, 1.84, 1.85, 1.98, 2.2), strict=True)),
    "kill": dict(zip(MODELS, (1.39, 1.37, 1.50, 1.38, 1.36, 1.39, 1.40, 1.37), strict=True)),
    "priority": dict(zip(MODELS, (2.05, 1.65, 1.57, 1.39, 1.61, 1.45, 1.47, 1.78), strict=True)),
}

#: §7.4, Table 2: share of the jobs' runtime spent on removing and adding.  For the second half our copy of the text
#: has only the row of kill; the range of EPS over the eight models is 4.9 to 6.2 %.
OVERHEAD = {
    "kill": dict(zip(MODELS, (0.223, 0.21, 0.292, 0.261, 0.241, 0.245, 0.257, 0.235), strict=True)),
    "elastic": {"svm": 0.054, "logistic": 0.049, "linear": 0.062, "dnn": 0.056},
}

#: §2.3 and Fig. 2: seconds.
CASE_STUDY = {
    "second_arrives_s": 600.0,
    "first_gives_feedback_s": 276.0,
    "static": {"first_finishes_s": 1735.0, "second_gives_feedback_s": 2134.0},
    "kill": {"second_gives_feedback_s": 1369.0},
    "elastic": {"second_gives_feedback_s": 1045.0},
}

#: §7.1 and Fig. 15, LR: minutes.
RUNNING_JOBS = {"most_running_static": 11, "threshold_reached_min": 28, "first_finishes_static_min": 41}
#: §7.3 and Fig. 19, LR: minutes between which nothing was submitted.
NOTHING_SUBMITTED_MIN = (9, 23)

SOURCES = {
    "fig2": "EPS §2.3, Fig. 2",
    "fig3": "EPS §2.3, Fig. 3; its text gives the times of Fig. 2, the means here follow from those",
    "fig14": "EPS §7.1, Fig. 14",
    "fig15": "EPS §7.1, Fig. 15",
    "fig16": "EPS §7.1, Fig. 16; its text gives an order, no numbers",
    "fig17": "EPS §7.2, Fig. 17; its text gives an order, no numbers",
    "fig18": "EPS §7.2, Fig. 18",
    "fig19": "EPS §7.3, Fig. 19",
    "table2": "EPS §7.4, Table 2",
    "fig20": "EPS §7.4, Fig. 20; its text gives an order, no numbers",
    "fig21": "EPS §7.4, Fig. 21; its text gives an order, no numbers",
    "fig22": "EPS §7.5, Fig. 22; its text gives numbers of nodes only",
}
