"""What programs that write kernels use: `nki mcp`, a Model Context Protocol server, and `nki search`."""
