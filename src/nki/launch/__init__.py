"""A launch: the cores of a call, the one door for instructions, meetings, observers."""
