"""The programs as a user types them: flags, help, messages and exit codes."""
