"""The indexer of DeepSeek's sparse attention."""
