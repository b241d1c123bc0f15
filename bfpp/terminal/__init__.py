"""Terminal: parser, number types, error lines, output files."""
