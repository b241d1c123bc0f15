"""Options of commands that train or measure: the model, its job, devices and processes."""
