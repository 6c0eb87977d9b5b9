"""Multi-head latent attention of DeepSeek V3.2, for prefill."""
