"""Would hardware and AWS's compilers forgive this kernel?"""

from .python import RULES, Finding, Rule, lint

__all__ = ["RULES", "Finding", "Rule", "lint"]
