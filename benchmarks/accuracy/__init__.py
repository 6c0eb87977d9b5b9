"""The model against published figures: `make accuracy`, docs/accuracy.md."""
