"""DeepSpeed's JSON, alone or beside a program's own settings."""
