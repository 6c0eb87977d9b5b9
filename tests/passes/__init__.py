"""Passes over Programs: none changes what a program does, if its instructions declare all their effects."""
