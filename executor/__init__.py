"""Does what a schedule says: runs its task graph on devices, for real."""
