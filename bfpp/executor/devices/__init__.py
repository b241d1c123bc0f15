"""Streams, events, flat buffers, messages and memory pools of a device."""
