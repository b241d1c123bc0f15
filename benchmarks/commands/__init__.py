"""Start-up of the command line, and answers of the explorer."""
