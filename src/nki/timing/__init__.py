"""When would each engine do it? Program -> operations -> schedule -> Timeline. No array values."""

from .schedule import schedule
from .timeline import Timeline

__all__ = ["Timeline", "schedule"]
