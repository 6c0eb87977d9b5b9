"""Operations on whole tensors of any shape."""
