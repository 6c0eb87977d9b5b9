"""Grade kernels that others wrote: `nki grade task submission.py`, in Python `nki.grading`.

A submission is code by a stranger. It runs in a process of its own, without data: it traces its kernel for
the shapes of a case, and all that comes back is a Program. The grader validates the Program, runs it on
visible and hidden inputs, compares the results with the reference and models the time.
"""

from .grade import grade, grade_all
from .sandbox import Limits
from .task import Case, Task, TaskError, integers, load_task, normal, uniform
from .verdict import CaseVerdict, Mismatch, Verdict

__all__ = [
    "Case",
    "CaseVerdict",
    "Limits",
    "Mismatch",
    "Task",
    "TaskError",
    "Verdict",
    "grade",
    "grade_all",
    "integers",
    "load_task",
    "normal",
    "uniform",
]
