"""nki.framework: where public code looks for the Kernel class."""
