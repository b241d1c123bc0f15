"""A user's model as layers, traced and checked before it is trained."""
