"""Launch files of other projects."""
