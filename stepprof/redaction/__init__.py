"""Keep secrets and control characters out of messages, command lines and configurations."""
