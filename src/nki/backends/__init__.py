"""Backends run Programs: each takes the lowered form (`lowered`) behind one protocol (`protocol`).

reference  one instruction at a time in numpy: the definition
fused      a few large matrix products
torch      many equal instructions at once, on torch tensors
"""
