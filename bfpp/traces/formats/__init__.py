"""Timeline files: JSON, Perfetto, Kineto, Chakra."""
