"""nkilib: kernels for Trainium, at the documented import paths. Importing it imports no kernel."""
