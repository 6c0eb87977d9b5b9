"""nkilib"""
