"""nanotron, of Hugging Face: its YAML as an experiment."""
