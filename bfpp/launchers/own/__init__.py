"""bfpp itself among the frameworks: what `bfpp run` launches."""
