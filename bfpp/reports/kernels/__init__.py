"""Reports on traces of any ranks: where their devices' time goes."""
