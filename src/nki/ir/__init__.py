"""What a kernel does, as data: instructions, effects, rules, and the Program they form."""
