"""Launches: the cores of a call, Core.issue, executions, barriers, the scheduler, observers."""
