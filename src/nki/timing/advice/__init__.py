"""What the advisor looks for: one function per kind of finding, each a pure function of a Study."""
