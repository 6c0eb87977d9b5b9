"""What the device's compiler changes in a program before it runs; `stage` lists and applies it."""
